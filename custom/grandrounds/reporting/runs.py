"""The one reader of a run's folder, whatever state the run is in, and of predictions.

Predictions are those that sites have written, or those of a run's model where the sites' images are on this machine.

A run is a simulation's workspace (its record is in ``results``), or the results of a downloaded job.
"""

from __future__ import annotations

import csv
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.csv_files import csv_cells
from grandrounds.data.manifest import read_manifest
from grandrounds.data.population import PROVENANCE
from grandrounds.data.site import Part, SiteData, load_site_data, locate_dataset
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.bootstrap import Cases, questions_of
from grandrounds.evaluation.curves.binned import SiteCurves, read_curves
from grandrounds.evaluation.history import Event, RunHistory, sites_of
from grandrounds.evaluation.record import EvalRecord, pooled
from grandrounds.evaluation.score import SHARES
from grandrounds.federation.server.record import (
    CONTRIBUTORS,
    EVENTS,
    FORMAT,
    REFERENCES,
    SUMMARY,
    SUMMED_RECORDS,
    read_events,
    with_true_status,
)
from grandrounds.files import read_json_object
from grandrounds.option_keys import FORMER_NAMES, current_configuration
from grandrounds.options import require_type, with_current_names
from grandrounds.ordering import natural_sorted
from grandrounds.privacy.ledger.ledger import LEDGER_NAME, read_ledger
from grandrounds.protocol.names import CASE, EXECUTOR, SERVER, VALIDATION
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.tasks import task_of
from grandrounds.remedies import missing
from grandrounds.reporting.run import (
    FINISHED,
    Origin,
    ReadRun,
    RunLog,
    Spent,
    Tests,
    expectation,
    reference_sentences,
    tested_models,
)

if TYPE_CHECKING:
    from torch import nn

    from grandrounds.protocol.task import Task


class SitePredictions(NamedTuple):
    """The predictions of a run's model for a split of a site's images.

    Attributes:
        images: shape ``(n, size, size, channels)``, 8 bit.
        probabilities: of the classes, shape ``(n, classes)``.
        model: in evaluation mode.
    """

    site: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    predicted: NDArray[np.int64]
    model: nn.Module


def read_tests(
    folder: Path, sites: Sequence[str], model: str, task: Task, classes: Sequence[str]
) -> dict[str, tuple[Cases, ...]]:
    """The predictions of all sites that have some, for each question of the task.

    Raises:
        DataError: if a file is damaged or of another vocabulary; file and line are named.
    """
    paths = {site: _file(folder, site, model) for site in sites}
    tests = {site: read_predictions(path, task, classes) for site, path in paths.items() if path.is_file()}
    return {site: cases for site, cases in tests.items() if any(len(case.labels) for case in cases)}


def read_site_curves(folder: Path, sites: Sequence[str], model: str, classes: Sequence[str]) -> dict[str, SiteCurves]:
    """The curves of all sites that have written theirs; arguments as :func:`read_tests`.

    Raises:
        DataError: if a file is damaged or of another vocabulary.
    """
    paths = {site: folder / site / f"curves_{model}.json" for site in sites}
    return {site: read_curves(path, classes) for site, path in paths.items() if path.is_file()}


def read_predictions(path: Path, task: Task, classes: Sequence[str]) -> tuple[Cases, ...]:
    """The predictions in one file; images without a known label are left out.

    Raises:
        DataError: if the header is of another vocabulary, or a line has a cell too few or a value that is none.
    """
    expected = ["image", *task.prediction_header(classes), CASE]
    with path.open(newline="", encoding="utf-8") as stream:
        header, *rows = [*map(csv_cells, csv.reader(stream))] or [[]]
    if header not in (expected, [name for name in expected if not name.startswith("predicted_")]):
        raise DataError(
            f"{path} is of another vocabulary or version than its run: expected {', '.join(expected)}, got "
            f"{', '.join(header) or 'no table of predictions'}; run the job again"
        )
    labels, probabilities, decided, cases = [], [], [], []
    for line, (_, *cells) in enumerate(rows, start=2):
        try:
            label, values, predicted = task.read_prediction(cells[:-1], classes)
        except (ValueError, IndexError) as error:
            raise DataError(f"{path} line {line}: {error}; the file was cut or altered") from error
        labels.append(label)
        probabilities.append(values)
        decided.append(predicted)
        cases.append(cells[-1].zfill(12))
    if not rows:
        return ()
    known_labels = np.stack(labels)
    known = task.known(known_labels)
    named = [case for case, kept in zip(cases, known, strict=True) if kept]
    risks, called = np.array(probabilities)[known], np.stack(decided)[known]
    return tuple(questions_of(task, known_labels[known], risks, named, called))


def read_names(folder: Path, sites: Sequence[str], model: str) -> dict[str, list[str]]:
    """The names of the predicted images with a known label by site.

    ``folder`` has the run's results, with a folder for each site; ``sites`` have predictions, and ``model`` is whose.
    """
    names = {}
    for site in sites:
        with _file(folder, site, model).open(newline="", encoding="utf-8") as stream:
            header, *lines = map(csv_cells, csv.reader(stream))
        image, label = header.index("image"), header.index("label")
        names[site] = [line[image] for line in lines if line[label]]
    return names


class WrongImage(NamedTuple):
    """A test image that a model calls by another class than its own; ``probability`` is of the class that it is called."""

    site: str
    image: str
    label: str
    called: str
    probability: float


def wrong_images(path: Path) -> list[WrongImage]:
    """The test images that the model of a run gets wrong, by falling probability of the class that they are called.

    Raises:
        ConfigurationError: if there is no run, its classes do not exclude each other, or its predictions are not here.
        DataError: if it is damaged; file and field are named.
    """
    run = read_run(path, path.absolute().name)
    run.task.require_exclusive("grandrounds errors", "look at the confusion of each finding in its report")
    if not run.tests.predictions:
        raise ConfigurationError(f"{path} has no predictions of test images: in a federation they stay at the sites")
    names, wrong = read_names(answers_folder(path), list(run.tests.predictions), run.tests.model), []
    for site, cases in run.tests.predictions.items():
        assert cases.probabilities is not None  # a file of predictions has them
        for row in np.flatnonzero(cases.predicted != cases.labels).tolist():
            label, called = int(cases.labels[row]), int(cases.predicted[row])
            sure = float(cases.probabilities[row, called])
            wrong.append(WrongImage(site, names[site][row], run.classes[label], run.classes[called], sure))
    return sorted(wrong, key=lambda image: -image.probability)


def read_columns(names: Mapping[str, Sequence[str]], dataset: str, sites_dir: Path) -> dict[str, tuple[str, ...]]:
    """The further columns of the sites' manifests for the predicted images, in the order of the sites' predictions.

    Args:
        names: of these images by site.
        dataset: the job's name of the data set.
        sites_dir: the partition of the run.

    Returns:
        A value for each image by column, ``source`` among them; empty where a site has none.
    """
    return columns_in((locate_dataset(site, dataset, [sites_dir]).manifest, chosen) for site, chosen in names.items())


def columns_in(images: Iterable[tuple[Path, Sequence[str]]]) -> dict[str, tuple[str, ...]]:
    """The further columns of test images, each with the manifest that lists them, as :func:`read_columns` gives them."""
    rows: list[dict[str, str]] = []
    for manifest, names in images:
        records = {record.image: record for record in read_manifest(manifest, split="test")}
        chosen = [records[name] for name in names]
        rows += [{**({"source": one.source} if one.source else {}), **dict(one.more)} for one in chosen]
    columns = dict.fromkeys(column for row in rows for column in row)
    return {column: tuple(row.get(column, "") for row in rows) for column in columns}


def site_predictions(run: ReadRun, sites_dir: Path, split: Part) -> Iterator[SitePredictions]:
    """Predict a split of each tested site with the selected model.

    ``sites_dir`` has one folder per site, as the run had it. Without weights, or where each site has its own model, there is
    nothing to predict with.

    Yields:
        Sites with labelled images in the split, one after the other.

    Raises:
        GrandRoundsError: if a site's data or the model are not as they must be.
    """
    if run.origin.weights is None or run.tests.model != "common":
        return
    from grandrounds.evaluation.prediction import predict, tensors_of
    from grandrounds.models.trained import trained_models

    problem = Problem.from_dict(run.log.problem)
    model_of = trained_models(problem.model_spec(pretrained=False), run.origin.weights, run.log.seed)
    for site in run.tests.questions:
        data = site_data_of(problem, site, sites_dir)
        rows = data.rows(split)
        if len(rows):
            model = model_of((data.images, data.rows("train")))
            answers = predict(model, tensors_of(data.images), rows, problem.kind, problem.test_view)
            known = data.images[rows], data.labels[rows], answers.risks.double().numpy()
            yield SitePredictions(site, *known, answers.decided(problem.kind), model)


def site_data_of(problem: Problem, site: str, sites_dir: Path) -> SiteData:
    """A site's images as its run had them, from the folder of its partition.

    Raises:
        GrandRoundsError: if they are not there or not as they must be.
    """
    location = locate_dataset(site, problem.dataset, [sites_dir])
    with decoded_images() as cache:
        return load_site_data(location, problem, cache)


def _file(folder: Path, site: str, model: str) -> Path:
    return folder / site / f"predictions_{model}.csv"


@contextmanager
def decoded_images() -> Iterator[Path]:
    """The folder of decoded images that the environment names, else one that is removed afterwards."""
    from grandrounds.protocol.paths import CACHE_VARIABLE

    named = os.environ.get(CACHE_VARIABLE)
    if named:
        yield Path(named)
        return
    with tempfile.TemporaryDirectory(prefix="grandrounds-") as temporary:
        yield Path(temporary)


RESULTS, SELECTED = "results", "selected.pt"
RECORD_PLACES = (RESULTS, ".", f"server/simulate_job/{RESULTS}", f"workspace/{RESULTS}")
"""Where a run's record is, in the folder of a run: the last two are those of FLARE's simulator and of a downloaded job."""
EXPECTED: Mapping[str, Any] = {
    "status": str,
    "rounds_done": int,
    "records": dict,
    "bytes": dict,
    "configuration": dict,
    "rounds": list[Any],
    "selected": dict,
    "contributions": dict,
    "seconds": float,
}


def read_run(path: Path, name: str, model: str | None = None) -> ReadRun:
    """Read a run.

    Args:
        path: a simulation's workspace, or a folder with ``summary.json``.
        name: of the run in the report.
        model: whose scores are wanted, ``common`` or ``own``; None prefers the common one. A run that has only the
            other kind is reported with that.

    Raises:
        ConfigurationError: if there is no run.
        DataError: if it is damaged; file and field are named.
    """
    classes, log, origin = _recorded(path)
    summary = _read_summary(record_folder(path) / SUMMARY)
    tests = _read_tests(answers_folder(path), summary, log.sites, classes, model)
    return ReadRun(name, classes, log, tests, replace(origin, spent=_ledgers(path)))


def read_record(path: Path, name: str) -> ReadRun:
    """A run without its tests and the budgets of its sites; arguments and errors as :func:`read_run`."""
    classes, log, origin = _recorded(path)
    return ReadRun(name, classes, log, Tests("common"), origin)


def _recorded(path: Path) -> tuple[tuple[str, ...], RunLog, Origin]:
    """The classes of a run, what its server has recorded, and where it comes from."""
    folder = record_folder(path)
    summary = _read_summary(folder / SUMMARY)
    events, notes = _read_events(folder)
    configuration = dict(summary["configuration"])
    options = with_current_names(configuration.pop(EXECUTOR, {}), FORMER_NAMES[EXECUTOR])
    classes = _classes(configuration, folder / SUMMARY)
    answers = answers_folder(path)
    sites = tuple(natural_sorted({*sites_of(events), *summary["records"], *summary["contributions"]}))
    log = RunLog(
        method=str(configuration.get("method", "unknown method")).removesuffix("Controller"),
        status=summary["status"],
        # Parentheses hold the sites' messages, which may name images or patients where sites share details.
        reason=re.sub(r"\s*\(.*\)", "", str(summary.get("reason", "")), flags=re.DOTALL),
        configuration=configuration,
        sites=sites,
        events=events,
        bytes=summary["bytes"],
        contributions=summary["contributions"],
        untested=tuple(summary.get("untested", ())),
        rounds_done=summary["rounds_done"],
        seconds=float(summary["seconds"]),
        selected=summary["selected"],
        versions=summary.get("versions", {}),
        started=str(summary.get("started", "")),
        remarks=tuple(summary.get("remarks", ())),
        expected=tuple(expectation(summary)),
        privacy=summary.get("privacy", {}),
        machine=summary.get("machine", {}),
        image_moments=summary.get("image_moments", {}),
    )
    weights = folder / SELECTED
    origin = Origin(
        provenance=_provenance(answers / PROVENANCE),
        options=options,
        weights=weights if weights.is_file() else None,
        notes=notes,
        reference="; ".join(reference_sentences(summary)) or _not_in_kits(summary, answers),
    )
    return classes, log, origin


def read_models(path: Path) -> list[ReadRun]:
    """The run once for each model that it has tested; arguments and errors as :func:`read_run`."""
    tested = tested_models(_read_summary(record_folder(path) / SUMMARY))
    return [read_run(path, path.name, model) for model in tested]


def _read_tests(
    answers: Path, summary: Mapping[str, Any], sites: Sequence[str], classes: Sequence[str], wanted: str | None
) -> Tests:
    """The records of one model in a summary, with the predictions where they are here."""
    tested = tested_models(summary)
    model = wanted if wanted in tested else next(iter(tested), "common")
    task = task_of(summary["configuration"]["problem"])
    predictions = read_tests(answers, sites, model, task, classes)
    try:
        beside = _read_references(answers, summary, sites, classes)
        records = {
            site: EvalRecord.from_json(task, classes, summary["records"][site][model])
            for site in sites
            if model in summary["records"].get(site, {})
        }
        summed = summary.get(SUMMED_RECORDS, {}).get(model)
        beside_all = _references_of_all(summary, beside, classes) if summed else {}
        together = replace(EvalRecord.from_json(task, classes, summed), beside=beside_all) if summed else None
        contributors = tuple(map(str, summed[CONTRIBUTORS])) if summed else ()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{answers / SUMMARY}: a record is damaged ({error}); restore the file or run the job again"
        ) from error
    for site, shares in _site_shares(_provenance(answers / PROVENANCE), records, predictions).items():
        beside[site] = {**beside.get(site, {}), SHARES: shares}
    return Tests(
        model,
        {
            site: replace(record, questions=predictions.get(site, ()), beside=beside.get(site, {}))
            for site, record in records.items()
        },
        together,
        contributors,
        validation=read_tests(answers, sites, VALIDATION, task, classes),
        curves={} if predictions else read_site_curves(answers, sites, model, classes),
    )


def _site_shares(
    provenance: Mapping[str, Any], records: Mapping[str, EvalRecord], predictions: Mapping[str, Sequence[Cases]]
) -> dict[str, EvalRecord]:
    """What the name of its site alone says of each image: the shares of the site's labelled training images.

    By site; only where predictions are here, and classes exclude each other.
    """
    found = {}
    for site, counts in ((provenance.get("data") or {}).get("sites") or {}).items():
        if site not in records or len(predictions.get(site, ())) != 1:
            continue
        record, (cases,) = records[site], predictions[site]
        if cases.classes != len(record.names):  # classes that share an image have no shares that add up
            continue
        labelled = np.array([counts["labelled"].get(name, 0) for name in record.names], np.float64)
        shares = labelled / labelled.sum() if labelled.any() else np.full(len(labelled), 1 / len(labelled))
        constant = np.full(len(cases.labels), shares.argmax(), np.int64)
        guess = replace(cases, probabilities=np.tile(shares, (len(cases.labels), 1)), predicted=constant)
        found[site] = EvalRecord.of(record.task, record.names, [guess], unit=record.unit)
    return found


def _not_in_kits(summary: Mapping[str, Any], answers: Path) -> str:
    """Between hospitals sums of features leave only for the job that declares them, so other jobs have no ridge head."""
    ridge = str(summary["configuration"].get("method", "")).startswith("Ridge")
    if ridge or summary["status"] != FINISHED or not tested_models(summary) or _provenance(answers / PROVENANCE):
        return ""
    return (
        "ridge: not computed: policy (this job sends no sums of features; where sites let them out, submit --reference)"
    )


def _read_references(
    answers: Path, summary: Mapping[str, Any], sites: Sequence[str], classes: Sequence[str]
) -> dict[str, dict[str, EvalRecord]]:
    """By site, the records of the models that a simulation's run is compared with."""
    task = task_of(summary["configuration"]["problem"])
    references: dict[str, dict[str, EvalRecord]] = {}
    for name, entry in summary.get(REFERENCES, {}).items():
        predictions = read_tests(answers, sites, name, task, classes)
        for site, content in entry.get("records", {}).items():
            record = EvalRecord.from_json(task, classes, content)
            references.setdefault(site, {})[name] = replace(record, questions=predictions.get(site, ()))
    return references


def _references_of_all(
    summary: Mapping[str, Any], sites: Mapping[str, Mapping[str, EvalRecord]], classes: Sequence[str]
) -> dict[str, EvalRecord]:
    """The records of these models on all images together, where those of single sites are not known of the run."""
    task, found = task_of(summary["configuration"]["problem"]), {}
    for name, entry in summary.get(REFERENCES, {}).items():
        if records := [of_site[name] for of_site in sites.values() if name in of_site]:
            found[name] = pooled(records)
        elif SUMMED_RECORDS in entry:
            found[name] = EvalRecord.from_json(task, classes, entry[SUMMED_RECORDS])
    return found


def read_history(path: Path) -> RunHistory:
    """Read the events of a run, which may have only begun; communities are left empty.

    Raises:
        ConfigurationError: if there is no record.
        DataError: if it is damaged.
    """
    folder = next((path / place for place in RECORD_PLACES if (path / place / EVENTS).is_file()), None)
    if folder is None:
        raise ConfigurationError(
            f"{path} has no record of a run: neither it nor its folder {RESULTS} has {EVENTS}; give the workspace of a "
            "simulation or the results of a downloaded job"
        )
    events, _ = _read_events(folder)
    classes: Sequence[str] = ()
    with suppress(ConfigurationError, LookupError, TypeError):
        classes = tuple(read_json_object(folder / SUMMARY)["configuration"]["problem"]["classes"])
    return RunHistory(events, sites_of(events), {}, classes)


def run_folders(folder: Path) -> list[Path]:
    """The folders below this one, at most three deep, that are runs; a run's own folders are not looked into.

    Raises:
        ConfigurationError: if the folder does not exist.
    """
    if not folder.is_dir():
        raise ConfigurationError(missing(folder, "a folder with runs in it"))
    found, waiting = [], [(folder, 0)]
    while waiting:
        place, depth = waiting.pop()
        if any((place / record / SUMMARY).is_file() for record in RECORD_PLACES) or any(
            place.glob(f"state/*/{SERVER}/{SUMMARY}")
        ):
            found.append(place)
        elif depth < 3:
            waiting += [(below, depth + 1) for below in place.iterdir() if below.is_dir() and not below.is_symlink()]
    return sorted(found)


def record_folder(path: Path) -> Path:
    """Where a run's record is.

    Raises:
        ConfigurationError: if there is none, or there are several; the message says what was looked for.
    """
    if not path.exists():
        raise ConfigurationError(missing(path, "the workspace of a run: grandrounds runs lists those of a folder"))
    for folder in (path / place for place in RECORD_PLACES):
        if (folder / SUMMARY).is_file():
            return folder
    # A run that was killed has not been copied to the results: its record is with the server's state.
    folders = sorted(folder.parent for folder in path.glob(f"state/*/{SERVER}/{SUMMARY}"))
    if len(folders) == 1:
        return folders[0]
    if folders:
        names = ", ".join(str(folder) for folder in folders)
        raise ConfigurationError(f"{path} has several runs: {names}; name one of these folders")
    begun = [*path.glob(EVENTS), *path.glob(f"*/{EVENTS}"), *path.glob(f"state/*/{SERVER}/{EVENTS}")]
    if begun:
        raise ConfigurationError(
            f"{path}: the run stopped before its first round was complete ({begun[0]} is all there is); there is nothing "
            "to report yet"
        )
    below = [run for place in RECORD_PLACES for run in path.glob(f"*/{place}/{SUMMARY}")]
    inside = f"its subfolders are, name {path}/* or one; " if below else ""
    raise ConfigurationError(
        f"{path} is no run: {inside}there is no {SUMMARY} in it, in its folder results or in state/RUN/{SERVER}; name the "
        "workspace of a simulation, what a recipe's get_result() gives, or the results of a downloaded job"
    )


def answers_folder(path: Path) -> Path:
    """The folder with a folder for each site: beside the record, or the state of a run that was not copied to its results.

    Raises:
        ConfigurationError: as :func:`record_folder`.
    """
    folder = record_folder(path)
    return folder.parent if folder.name == SERVER else folder


def split_argument(text: str) -> tuple[str | None, Path]:
    """``NAME=PATH`` as name and path, ``PATH`` as path alone.

    Example:
        >>> split_argument("FedPerl, two peers=runs/fedperl")[0], split_argument("runs/fedperl")[0]
        ('FedPerl, two peers', None)
    """
    name, equals, path = text.partition("=")
    return (name.strip(), Path(path)) if equals and name.strip() and path else (None, Path(text))


def run_name(path: Path) -> str:
    """A name for a run that has none: of its folder, or the folder above its results.

    Example:
        >>> run_name(Path("/runs/ham/results/last.pt")), run_name(Path("/runs/ham"))
        ('ham', 'ham')
    """
    folder = path.absolute() if not path.suffix else path.absolute().parent
    return folder.parent.name if folder.name == RESULTS else folder.name


def named_runs(arguments: Sequence[tuple[str | None, Path]]) -> dict[str, Path]:
    """The runs by different names: the given one, else the folder's, with its parent's where they agree.

    Example:
        >>> list(named_runs([(None, Path("a/run")), (None, Path("b/run")), ("mine", Path("c"))]))
        ['a/run', 'b/run', 'mine']

    Raises:
        ConfigurationError: if two runs would have one name.
    """
    short = [name or path.absolute().name for name, path in arguments]
    often = Counter(short)
    names = [
        text if name or often[text] == 1 else f"{path.absolute().parent.name}/{text}"
        for text, (name, path) in zip(short, arguments, strict=True)
    ]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigurationError(f"two runs are called {twice[0]!r}; name them: NAME=RUN")
    return dict(zip(names, (path for _, path in arguments), strict=True))


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(
            f"{path} is not valid JSON ({error}): it was cut or altered; restore it or run the job again"
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is no summary of a run: expected an object, got {type(content).__name__}")
    if content.get("format") != FORMAT:
        raise DataError(
            f"{path} has format {content.get('format', 1)}, this version of grandrounds reads format {FORMAT}: read the run "
            "with the version that made it (its versions are in the file), or run the job again"
        )
    try:
        for key, kind in EXPECTED.items():
            require_type(content.get(key), kind, key)
    except ConfigurationError as error:
        raise DataError(f"{path}: {str(error)[:200]}; it is no summary of a run") from error
    content["configuration"] = current_configuration(content["configuration"])
    return with_true_status(content, path.parent)


def _read_events(folder: Path) -> tuple[list[Event], tuple[str, ...]]:
    """The events, and a note if some were cut off when the process died."""
    path = folder / EVENTS
    if not path.is_file():
        return [], (f"the run's {EVENTS} is missing: single rounds are unknown",)
    try:
        events: list[Event] = list(read_events(folder))
        cut = sum(not _is_json(line) for line in path.read_text(encoding="utf-8").splitlines())
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error!r}); restore it or run the job again") from error
    if cut == 0:
        return events, ()
    lost = "an event was" if cut == 1 else f"{cut} events were"
    return events, (f"{lost} cut off: the process ended while it wrote",)


def _is_json(line: str) -> bool:
    with suppress(ValueError):
        json.loads(line)
        return True
    return False


def _classes(configuration: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    problem = configuration.get("problem")
    known = problem if isinstance(problem, dict) else {}
    classes = known.get("classes")
    if not isinstance(classes, list) or len(classes) < 2 or not isinstance(known.get("dataset"), str):
        raise DataError(f"{path}: configuration.problem must have a data set and classes; run the job again")
    return tuple(str(name) for name in classes)


def _provenance(path: Path) -> dict[str, Any]:
    """What a simulation was computed from; empty for any other run."""
    return read_json_object(path) if path.is_file() else {}


def _ledgers(path: Path) -> tuple[Spent, ...]:
    """The budgets booked in the privacy ledgers of a run's folder."""
    ledgers = {
        ledger.resolve() for part in (RESULTS, "state", ".") for ledger in (path / part).glob(f"**/{LEDGER_NAME}")
    }
    spent = []
    for ledger in sorted(ledgers):
        content = read_ledger(ledger)
        for name in content.datasets:
            bookings = [booking for booking in content.bookings if booking.dataset.name == name]
            last = bookings[-1]
            history = tuple((booking.purpose.round_number, _finite(booking.epsilon)) for booking in bookings)
            unit, shared = last.spending.unit, len(content.datasets) > 1 and last.spending.unit.of_site
            epsilon = content.spent(name, last.delta, unit) if shared else last.epsilon
            spent.append(Spent(content.opening.site, unit.value, _finite(epsilon), last.delta, history))
    return tuple(spent)


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
