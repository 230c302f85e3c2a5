"""One number: a score, and a number of bytes, is the same wherever it stands, and scikit-learn's where predictions are here.

A place is a function from a finished run to its scores, ``{(row, name): Shown}``: a new place is one more function in
``READERS``. Rows are sites, ``mean``, ``pooled`` and the reference ``ridge``; a number with fewer digits is compared as
far as it is written.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping
from html.parser import HTMLParser
from typing import NamedTuple

import numpy as np
import pytest
from rich.console import Console
from sklearn import metrics as sk

import grandrounds as gr
from grandrounds.console.scores import COLUMNS, facts, score_table
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.data.site import read_site_config
from grandrounds.deployment.operation.monitor import score_curve
from grandrounds.deployment.operation.status import run_status
from grandrounds.deployment.submission import submit_and_watch, with_roster
from grandrounds.evaluation.record import NO_COUNTS, EvalRecord
from grandrounds.privacy.gate.gate import STEPS
from grandrounds.protocol.tasks import task_of
from grandrounds.reporting.runs import read_models
from grandrounds.reporting.tables import SCORE_NAMES

from .conftest import SITES, Finished, finish, read

WRITTEN = 1e-6


class Shown(NamedTuple):
    """A number as it stands somewhere, and how far it may be rounded there."""

    value: float
    within: float = WRITTEN


Numbers = Mapping[tuple[str, str], Shown]


def in_summary(done: Finished) -> Numbers:
    """Exact scores in ``summary.json``."""
    records = done.summary["records"]
    return {
        (site, name): Shown(value)
        for site, tested in records.items()
        for name, value in tested[done.model]["exact"].items()
    }


def in_table(done: Finished) -> Numbers:
    """The printed table: three digits, a mark, and the part that a mean is over."""
    (run,) = [run for run in read_models(done.workspace) if run.tests.model == done.model]
    stream = io.StringIO()
    Console(file=stream, width=160).print(score_table([run]))
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in stream.getvalue().splitlines()
        if line.startswith("│")
    ]
    names = run.task.scores
    found = {}
    for row in rows:
        for name, cell in zip(names, row[-len(names) :], strict=True):
            if row[0] in (*SITES, "mean", "pooled", "ridge") and (
                match := re.fullmatch(r"(\d\.\d+)\*?(?: \((\d+)/\d+\))?", cell)
            ):
                part = "sites" if row[0] == "mean" else "classes"
                found[row[0], f"{name}_of_{match[2]}_{part}" if match[2] else name] = Shown(float(match[1]), 5.1e-4)
    return found


def in_api(done: Finished) -> Numbers:
    """``gr.Run.scores()``."""
    frame = done.run.scores({"common": "selected", "own": "own"}[done.model])
    names = [name for name in COLUMNS if name in frame]
    return {
        (row, name): Shown(float(frame.loc[row, name]))
        for row in frame.index
        for name in names
        if row in (*SITES, "mean", "pooled", "ridge") and not np.isnan(frame.loc[row, name])
    }


def in_report(done: Finished) -> Numbers:
    """``report.json``."""
    scores = read(done.report / "report.json")["runs"][0]["scores"]
    groups = {**{site: group["scores"] for site, group in scores["sites"].items()}, "mean": scores["mean"]}
    groups |= {"pooled": scores["pooled"]["scores"]}
    return {**_plain(groups), **_ridge(scores["pooled"])}


def in_csv(done: Finished) -> Numbers:
    """``tables/sites.csv`` of the report."""
    with (done.report / "tables" / "sites.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["value"]]
    names = {"all": "pooled"}
    return {(names.get(row["group"], row["group"]), row["score"]): Shown(float(row["value"])) for row in rows}


class _Tables(HTMLParser):
    """The cells of a page's tables."""

    def __init__(self) -> None:
        super().__init__()
        self.tables, self._inside = [], False

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.tables.append([])
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
        elif tag in ("td", "th") and self.tables and self.tables[-1]:
            self.tables[-1][-1].append("")
            self._inside = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.tables[-1][-1][-1] += f" {data.strip()}"


def in_page(done: Finished) -> Numbers:
    """The table of sites on the report's page."""
    parser = _Tables()
    parser.feed((done.report / "report.html").read_text(encoding="utf-8"))
    titles = {title: name for name, title in SCORE_NAMES.items()}
    rows_of = {**{site: site for site in SITES}, "all images together": "pooled", "mean over sites": "mean"}
    rows_of["ridge, all images"] = "ridge"
    found = {}
    for header, *rows in parser.tables:
        columns = [cell.strip() for cell in header]
        if columns[:2] != ["site", "images"]:
            continue
        for row in rows:
            for title, cell in zip(columns, row, strict=True):
                match = re.match(r" (\d\.(\d+))\*?(?: \((\d+) of \d+ (\w+)\))?", cell)
                if row[0].strip() in rows_of and title in titles and match:
                    name = titles[title] + (f"_of_{match[3]}_{match[4]}" if match[3] else "")
                    found[rows_of[row[0].strip()], name] = Shown(float(match[1]), 0.51 * 10.0 ** -len(match[2]))
    return found


def in_card(done: Finished) -> Numbers:
    """The model card."""
    if done.card is None:
        return {}
    metrics = read(done.card)["metrics"]
    plain = _plain({"pooled": metrics["pooled"]["scores"], "mean": metrics["mean_over_sites"]})
    return {**plain, **_ridge(metrics["pooled"])}


def _ridge(pooled: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Numbers:
    """The reference row of a report's or card's scores of all images."""
    return {("ridge", name): Shown(value) for name, value in pooled["references"].get("ridge", {}).items()}


def _plain(groups: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> Numbers:
    return {
        (row, name): Shown(score["value"])
        for row, scores in groups.items()
        for name, score in scores.items()
        if score["value"] is not None
    }


READERS: Mapping[str, Callable[[Finished], Numbers]] = {
    "summary.json": in_summary,
    "printed table": in_table,
    "gr.Run.scores()": in_api,
    "report.json": in_report,
    "tables/sites.csv": in_csv,
    "page": in_page,
    "model card": in_card,
}


@pytest.mark.parametrize("place", READERS)
def test_a_score_is_the_same_wherever_it_stands(finished, place):
    ours = READERS[place](finished)
    assert ours or (place == "model card" and finished.model == "own"), "nothing was read"
    for other, reader in READERS.items():
        theirs = reader(finished)
        for key in ours.keys() & theirs.keys():
            within = ours[key].within + theirs[key].within
            assert ours[key].value == pytest.approx(theirs[key].value, abs=within), (key, place, other)


def predictions(done: Finished, site: str, model: str = "") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, probabilities and predicted labels of a site's test images, from its table."""
    task, classes = task_of(done.summary["configuration"]["problem"]), done.run.classes
    with (done.workspace / "results" / site / f"predictions_{model or done.model}.csv").open() as stream:
        rows = [task.read_prediction(row[1:-1], classes) for row in list(csv.reader(stream))[1:]]
    labels, probabilities, called = zip(*rows, strict=True)
    return np.stack(labels), np.array(probabilities), np.stack(called)


def of_scikit_learn(labels: np.ndarray, probabilities: np.ndarray, called: np.ndarray) -> dict[str, float]:
    """Scores of one class per image, or means over findings of those of each finding, of classes that occur."""
    if labels.ndim > 1:
        each = [
            _of_finding(*column)
            for column in zip(labels.T, probabilities.T, called.T, strict=True)
            if set(column[0]) == {0, 1}
        ]
        return {name: float(np.mean([scores[name] for scores in each])) for name in each[0]}
    there = np.unique(labels)
    averaged = {
        f"{name}_{average}": score(labels, called, labels=there, average=average, zero_division=0)
        for name, score in (("f1", sk.f1_score), ("precision", sk.precision_score))
        for average in ("macro", "weighted")
    }
    areas = [sk.roc_auc_score(labels == number, probabilities[:, number]) for number in there if len(there) > 1]
    return {
        "accuracy": sk.accuracy_score(labels, called),
        "balanced_accuracy": sk.recall_score(labels, called, labels=there, average="macro", zero_division=0),
        "recall_weighted": sk.accuracy_score(labels, called),
        "auc_macro": float(np.mean(areas)),
        **averaged,
    }


def _of_finding(labels: np.ndarray, probabilities: np.ndarray, called: np.ndarray) -> dict[str, float]:
    return {
        "auc_macro": sk.roc_auc_score(labels, probabilities),
        "balanced_accuracy": sk.balanced_accuracy_score(labels, called),
        "f1_macro": sk.f1_score(labels, called, zero_division=0),
    }


def expected(done: Finished) -> dict[tuple[str, str], float]:
    """What scikit-learn computes from the predictions of each site, of all sites, and the means over sites."""
    found = {site: predictions(done, site) for site in SITES}
    rows = {site: of_scikit_learn(*one) for site, one in found.items()}
    rows["mean"] = {name: float(np.mean([rows[site][name] for site in SITES])) for name in rows[SITES[0]]}
    rows["pooled"] = _of_all(found.values())
    if done.exact:
        rows["ridge"] = _of_all([predictions(done, site, "ridge") for site in SITES])
    return {(row, name): value for row, scores in rows.items() for name, value in scores.items()}


def _of_all(sites: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> dict[str, float]:
    return of_scikit_learn(*(np.concatenate(part) for part in zip(*sites, strict=True)))


def step_of(done: Finished) -> float:
    """How a gate rounds scores of images whose table stays: by the site with the fewest."""
    fewest = min(len(predictions(done, site)[0]) for site in SITES)
    return next(step for step in STEPS if step * fewest >= 1)


@pytest.mark.parametrize("place", READERS)
def test_a_score_is_scikit_learns_and_none_is_missing_without_a_policy(finished, place):
    ours, theirs = READERS[place](finished), expected(finished)
    for key in ours.keys() & theirs.keys():
        rounded = 0.0 if finished.exact else step_of(finished) / 2
        assert ours[key].value == pytest.approx(theirs[key], abs=ours[key].within + rounded), key
    if finished.exact and place in ("printed table", "gr.Run.scores()"):
        names = task_of(finished.summary["configuration"]["problem"]).scores
        assert ours.keys() >= {(row, name) for row in (*SITES, "mean", "pooled", "ridge") for name in names}


def test_under_a_policy_there_is_no_reference_row_and_the_reason_stands_everywhere(make):
    done = make("classes under a policy")
    assert done.summary["references"] == {"ridge": {"reason": "not computed: policy"}}
    assert "ridge: not computed: policy" in facts(done.summary)
    assert read(done.report / "report.json")["runs"][0]["reference"] == "ridge: not computed: policy"
    assert read(done.card)["metrics"]["reference"] == "ridge: not computed: policy"
    assert "ridge: not computed: policy" in (done.report / "report.html").read_text()
    assert not any(("ridge", name) in reader(done) for reader in READERS.values() for name in COLUMNS)


def test_under_a_policy_a_table_that_stays_gives_no_score_but_its_reason(make):
    """The report has scores all the same, from the predictions on this machine, which kits keep at their sites."""
    done = make("classes under a policy")
    task = task_of(done.summary["configuration"]["problem"])
    for site, tested in done.summary["records"].items():
        record = tested[done.model]
        assert not record.get("counts"), "else the policy keeps nothing here"
        assert not {"balanced_accuracy", "f1_weighted"} & record["exact"].keys()
        score = EvalRecord.from_json(task, done.run.classes, record).score("balanced_accuracy")
        assert np.isnan(score.value)
        assert score.reason == NO_COUNTS
        assert (site, "balanced_accuracy") not in in_summary(done)


BYTES = re.compile(r"([\d.]+) (B|kB|MB|GB) to the sites, ([\d.]+) (B|kB|MB|GB) from them")
UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def _told(text: str) -> tuple[Shown, Shown]:
    down, unit, up, other = BYTES.search(text).groups()
    return tuple(Shown(float(number) * UNITS[one], 0.051 * UNITS[one]) for number, one in ((down, unit), (up, other)))


def _parts(traffic: Mapping[str, int]) -> tuple[Shown, Shown]:
    return Shown(traffic["down_global"] + traffic["down_extra"]), Shown(traffic["up"])


TRAFFIC: Mapping[str, Callable[[Finished], tuple[Shown, Shown]]] = {
    "printed": lambda done: _told("\n".join(facts(done.summary))),
    "report.json": lambda done: _parts(read(done.report / "report.json")["runs"][0]["bytes"]),
    "page": lambda done: _told((done.report / "report.html").read_text()),
    "status": lambda done: tuple(
        Shown(run_status(done.workspace / "results").runs[0]["moved"][way]) for way in ("down", "up")
    ),
    "model card": lambda done: _parts(read(done.card)["training"]["bytes"]),
}


@pytest.mark.parametrize("place", TRAFFIC)
def test_bytes_are_the_same_wherever_they_stand(make, place):
    done = make("classes")
    parts = [item for sizes in done.summary["bytes"].values() for item in sizes.items()]
    sums = [sum(size for name, size in parts if name.startswith(way)) for way in ("down.", "up.")]
    for shown, exact in zip(TRAFFIC[place](done), sums, strict=True):
        assert shown.value == pytest.approx(exact, abs=shown.within)


def test_the_score_that_selected_is_the_same_in_summary_events_monitor_and_report(finished):
    selected = finished.summary["selected"]
    shown = run_status(finished.workspace / "results").runs[0]["scores"]
    assert shown[str(selected["round"])]["score"] == pytest.approx(selected["score"], abs=WRITTEN)
    number, text = score_curve(shown)["best"]
    assert number == selected["round"]
    assert f"{selected['score']:.3f}" in text
    report = read(finished.report / "report.json")["runs"][0]["selected"]
    assert report["score"] == pytest.approx(selected["score"], abs=WRITTEN)


@pytest.mark.parametrize("kind", ["classes", "findings"])
def test_an_external_evaluation_has_one_number_in_its_json_tables_and_report(make, kind, tmp_path):
    done = make(kind)
    name = done.summary["configuration"]["problem"]["dataset"]
    folder = phantom_site(
        "elsewhere", tmp_path, images=240, size=32, **({} if kind == "classes" else {"dataset": name})
    )
    found = gr.evaluate(done.workspace, {"elsewhere": read_site_config(folder)[name]}, minimum=1, progress=False)
    predicted = found.place.sites["elsewhere"]
    decided = task_of(done.summary["configuration"]["problem"]).decide(predicted.decisions)
    oracle = of_scikit_learn(predicted.labels, predicted.probabilities, decided)
    written = found.result.to_json()["scores"]["pooled"]["scores"]
    tables = found.tables()
    shared = oracle.keys() & written.keys() & tables["pooled"].keys()
    assert {"balanced_accuracy", "auc_macro"} <= shared
    for score in shared:
        assert written[score]["value"] == pytest.approx(oracle[score], abs=WRITTEN)
        for place in (tables["pooled"], tables["sites"]["elsewhere"]):
            assert place[score] == pytest.approx(oracle[score], abs=WRITTEN)
        assert found.scores().loc["elsewhere", score] == pytest.approx(oracle[score], abs=WRITTEN)


@pytest.mark.provisioned
def test_startup_kits_show_one_number_for_each_score(consortium, tmp_path, shared_cache):
    from grandrounds.deployment.jobs import load_job
    from grandrounds.deployment.presets import with_options

    options = ["controller.rounds=2", "executor.steps=2", "executor.device=cpu", "controller.round_timeout=120"]
    with consortium(SITES, gently=True) as made:
        job = with_roster(with_options(load_job("fedavg"), options), mandatory=SITES, min_sites=3)
        outcome = submit_and_watch(made.kit(made.researcher), job, tmp_path / "results", lambda line: None)
    assert outcome.finished
    done = finish(outcome.download / "workspace", exact=False)
    found = {place: reader(done) for place, reader in READERS.items()}
    for place, ours in found.items():
        for other, theirs in found.items():
            for key in ours.keys() & theirs.keys():
                within = ours[key].within + theirs[key].within
                assert ours[key].value == pytest.approx(theirs[key].value, abs=within), (key, place, other)
