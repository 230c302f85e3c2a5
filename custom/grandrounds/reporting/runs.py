"""The one reader of a run's folder, whatever state the run is in.

A run is a simulation's workspace (its record is in ``results``), the results of a downloaded job, or a benchmark's result.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from grandrounds.data.population import PROVENANCE
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.history import Event, RunHistory, sites_of
from grandrounds.evaluation.record import EvalRecord
from grandrounds.federation.server.record import EVENTS, FORMAT, REFERENCES, SUMMARY, read_events, with_true_status
from grandrounds.json_files import read_json_object
from grandrounds.option_annotations import require_type
from grandrounds.option_keys import FORMER_NAMES, current_configuration
from grandrounds.options import with_current_names
from grandrounds.ordering import natural_sorted
from grandrounds.privacy.ledger.ledger import LEDGER_NAME, read_ledger
from grandrounds.protocol.names import SERVER, VALIDATION
from grandrounds.protocol.tasks import task_of
from grandrounds.reporting.benchmark_result import is_benchmark_result, read_benchmark_result
from grandrounds.reporting.predictions import read_site_curves, read_tests
from grandrounds.reporting.run import (
    FINISHED,
    Origin,
    ReadRun,
    RunLog,
    Spent,
    Tests,
    reference_sentences,
    tested_models,
)

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
        path: a simulation's workspace, a folder with ``summary.json``, or a benchmark's result file.
        name: of the run in the report.
        model: whose scores are wanted, ``common`` or ``own``; None prefers the common one. A run that has only the
            other kind is reported with that.

    Raises:
        ConfigurationError: if there is no run.
        DataError: if it is damaged; file and field are named.
    """
    if path.is_file():
        return read_benchmark_result(path, name, model)
    folder = record_folder(path)
    summary = _read_summary(folder / SUMMARY)
    events, notes = _read_events(folder)
    configuration = summary["configuration"]
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
        privacy=summary.get("privacy", {}),
        machine=summary.get("machine", {}),
        image_moments=summary.get("image_moments", {}),
    )
    weights = folder / SELECTED
    origin = Origin(
        provenance=_provenance(answers / PROVENANCE),
        options=_executor_options(path),
        weights=weights if weights.is_file() else None,
        spent=_ledgers(path),
        notes=notes,
        reference="; ".join(reference_sentences(summary)) or _not_in_kits(summary, answers),
    )
    tests = _read_tests(answers, summary, sites, classes, model)
    return ReadRun(name, classes, log, tests, origin)


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
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{answers / SUMMARY}: a record is damaged ({error}); restore the file or run the job again"
        ) from error
    return Tests(
        model,
        {
            site: replace(record, questions=predictions.get(site, ()), beside=beside.get(site, {}))
            for site, record in records.items()
        },
        validation=read_tests(answers, sites, VALIDATION, task, classes),
        curves={} if predictions else read_site_curves(answers, sites, model, classes),
    )


def _not_in_kits(summary: Mapping[str, Any], answers: Path) -> str:
    """Between hospitals sums of features leave only for the job that declares them, so other jobs have no ridge head."""
    ridge = str(summary["configuration"].get("method", "")).startswith("Ridge")
    if ridge or summary["status"] != FINISHED or not summary["records"] or _provenance(answers / PROVENANCE):
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


def record_folder(path: Path) -> Path:
    """Where a run's record is.

    Raises:
        ConfigurationError: if there is none, or there are several; the message says what was looked for.
    """
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist; name the workspace of a run or a result's JSON file")
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
        "workspace of a simulation, what a recipe's get_result() gives, the results of a downloaded job, or a benchmark's "
        "result file"
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
    """The runs by different names: the given one, else the folder's or file's, with its parent's where they agree.

    Example:
        >>> list(named_runs([(None, Path("a/run")), (None, Path("b/run")), ("mine", Path("c"))]))
        ['a/run', 'b/run', 'mine']

    Raises:
        ConfigurationError: if two runs would have one name.
    """
    short = [name or (path.stem if path.suffix == ".json" else path.absolute().name) for name, path in arguments]
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
    if is_benchmark_result(content):
        raise ConfigurationError(f"{path.parent} is no run: {path.name} is a benchmark's result; name the file itself")
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


def _executor_options(path: Path) -> dict[str, Any]:
    config = path / "job" / "app" / "config" / "config_fed_client.json"
    try:
        stated = dict(json.loads(config.read_text(encoding="utf-8"))["executors"][0]["executor"]["args"])
        return with_current_names(stated, FORMER_NAMES["executor"])
    except (OSError, ValueError, LookupError, TypeError):
        return {}


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
            unit = last.spending.unit.value
            spent.append(Spent(content.opening.site, unit, _finite(last.epsilon), last.delta, history))
    return tuple(spent)


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
