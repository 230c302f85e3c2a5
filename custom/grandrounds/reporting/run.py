"""A run as a report sees it: its log, the tests of its model, where it comes from, and all of its scores.

Scores are by site, community, and of all images together: the evaluation records of the sites, and sums of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import starmap
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from grandrounds.data.population import NOTHING_TO_DO
from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.clinical.suppression import MIN_SHOWN, shown_counts, suppressed
from grandrounds.evaluation.comparisons import mean_of_seeds
from grandrounds.evaluation.curves.binned import SiteCurves
from grandrounds.evaluation.estimates import mean_over
from grandrounds.evaluation.history import Event, RunHistory
from grandrounds.evaluation.metrics import score_range
from grandrounds.evaluation.record import EvalRecord, pooled
from grandrounds.evaluation.score import CHANCE, Score, ScoreSheet, named, no_score
from grandrounds.federation.server.record import REFERENCES, SUMMED_RECORDS, Traffic, traffic
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.names import ELSEWHERE, OTHER_SOURCES
from grandrounds.protocol.spending import Unit
from grandrounds.protocol.tasks import task_of

if TYPE_CHECKING:
    from grandrounds.protocol.task import Task


FINISHED = "finished"
LOCAL = "Local"
MODELS: Mapping[str, str] = {
    "common": "the one model that the federation selected",
    "own": "each site's own choice by its validation images",
}


SCORES_ELSEWHERE: Mapping[str, str] = {
    "auc_macro": "AUROC",
    "balanced_accuracy": "balanced accuracy",
    "log_loss": "log loss",
}
"""Scores of a model at a hospital that it has not learned from."""
HELD_OUT = "held_out"
"""Entry of ``summary.json``: by site that trained nothing, test images and exact scores of the selected model."""
FEWEST_HOSPITALS = 5
"""For an interval over hospitals."""


@dataclass(frozen=True)
class Spent:
    """The privacy budget that a site's ledger has booked for one data set.

    Attributes:
        unit: what is protected, for example a patient.
        epsilon: of all releases together, None if infinite.
        history: round and epsilon after each release, in order.
    """

    site: str
    unit: str
    epsilon: float | None
    delta: float
    history: tuple[tuple[int, float | None], ...] = ()

    @property
    def protects(self) -> str:
        """The unit with its adjacency, such as ``record, added or removed``; one that is not known stands alone."""
        return f"{self.unit}, {Unit(self.unit).adjacency}" if self.unit in set(Unit) else self.unit


@dataclass(frozen=True, eq=False)
class RunLog:
    """What the server has recorded.

    Attributes:
        method: the method's name.
        status: ``finished``, ``failed``, ``aborted`` or ``running``.
        reason: why, where it did not finish.
        configuration: the controller's options.
        sites: all that took part or were there, in natural order.
        events: of the run, in order.
        bytes: of tensors, by site and ``down.NAME`` or ``up.NAME``.
        contributions: rounds to which each site gave an update.
        untested: sites without a test of the final model.
        rounds_done: complete rounds.
        seconds: how long it took.
        selected: round, metric and score of the selected model.
        versions: of the software that computed the result.
        started: date and time in UTC, ISO 8601; empty where it is not recorded.
        remarks: what a reader of the run must know, such as a checkpoint that was damaged.
        expected: what a hospital like none of these may expect, see :func:`expectation`.
        privacy: by site the treatments that its gate has reported, and the epsilon that it has reported.
        machine: of the server, in a simulation of all sites; empty where it is not recorded.
        image_moments: of the training images, or why there are none; empty where that is not recorded.
    """

    method: str
    status: str
    reason: str
    configuration: Mapping[str, Any]
    sites: tuple[str, ...]
    events: Sequence[Event]
    bytes: Mapping[str, Mapping[str, int]]
    contributions: Mapping[str, int]
    untested: tuple[str, ...]
    rounds_done: int
    seconds: float
    selected: Mapping[str, Any]
    versions: Mapping[str, str]
    started: str = ""
    remarks: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    privacy: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    image_moments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seed(self) -> int | None:
        """Of the run; None if it is not recorded."""
        return self.configuration.get("seed")

    @property
    def problem(self) -> Mapping[str, Any]:
        """The job's ``problem`` entry; empty where it is not recorded."""
        return dict(self.configuration.get("problem", {}))

    @property
    def rounds(self) -> int:
        """How many rounds were planned."""
        return int(self.configuration.get("rounds", self.rounds_done))

    @property
    def is_local(self) -> bool:
        """Whether every site trained for itself."""
        return self.method.startswith(LOCAL) or self.method.startswith(LOCAL.lower())

    @property
    def complete(self) -> bool:
        """Whether it finished."""
        return self.status == FINISHED

    @property
    def traffic(self) -> Traffic:
        """Bytes of its tensors, over all sites."""
        return traffic(self.bytes)

    def noted(self, what: str) -> dict[str, list[int]]:
        """The rounds in which the server has noted something of a site, such as ``bounded``."""
        rounds: dict[str, list[int]] = {}
        for event in self.events:
            for site in event.get(what, ()) if event["event"] == "round_end" else ():
                rounds.setdefault(site, []).append(int(event["round"]))
        return rounds

    def dropped(self) -> dict[str, list[int]]:
        """The rounds in which each site was asked and gave no usable answer."""
        rounds: dict[str, list[int]] = {}
        for event in self.events:
            if event["event"] == "dropped":
                rounds.setdefault(event["site"], []).append(int(event["round"]))
        return rounds


@dataclass(frozen=True, eq=False)
class Tests:
    """The tests of one model at the sites of a run.

    Attributes:
        model: ``common`` or ``own``.
        sites: the record of each tested site, with the predictions where they are here.
        together: the record of all images, where it is not the sum of the sites' records.
        contributors: the sites of which ``together`` is, where nothing is known of each alone.
        validation: predictions for validation images of the common model by site and question, where they are here.
        curves: of the sites whose predictions are not here.
        columns: further columns of the manifests, a value for each predicted image in the order of the sites.
        names: of the predicted images by site, where the sites' folders are here.
    """

    __test__ = False

    model: str
    sites: Mapping[str, EvalRecord] = field(default_factory=dict)
    together: EvalRecord | None = None
    contributors: tuple[str, ...] = ()
    validation: Mapping[str, Sequence[Cases]] = field(default_factory=dict)
    curves: Mapping[str, SiteCurves] = field(default_factory=dict)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def _pooled(self) -> EvalRecord:
        return pooled([self.sites[site] for site in natural_sorted(self.sites)])

    def at(self, sites: Collection[str]) -> EvalRecord:
        """The record of some sites together; that of all keeps the scores that have been computed of it."""
        if self.together and set(sites) == set(self.contributors):
            return self.together
        if set(sites) == set(self.sites):
            return self._pooled
        return pooled([self.sites[site] for site in natural_sorted(sites)])

    @property
    def questions(self) -> dict[str, tuple[Cases, ...]]:
        """The predictions by site, for each question of the task, where they are here."""
        return {site: record.questions for site, record in self.sites.items() if record.questions}

    @property
    def predictions(self) -> dict[str, Cases]:
        """The predictions by site where the task is one question; else empty."""
        return {site: questions[0] for site, questions in self.questions.items() if len(questions) == 1}

    @property
    def known(self) -> bool:
        """Whether there is a score of the run's sites."""
        return bool(self.sites or self.contributors)

    @property
    def unit(self) -> str:
        """What a case is."""
        records = [*self.sites.values(), *([self.together] if self.contributors and self.together else [])]
        return " or ".join(sorted({record.unit for record in records})) or "image"


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a run comes from, and what lies beside it.

    Attributes:
        provenance: of a simulation the command and its sites' data, see
            :func:`~grandrounds.data.population.describe_population`.
        communities: the community of each site, where it is known.
        options: the executors' options, where the job's files are there.
        weights: the selected model's file, if it is there.
        spent: the budgets booked in the sites' privacy ledgers.
        notes: what is missing or damaged in the record.
        reference: which ridge head the run is compared with, or why there is none; empty where that was switched off.
    """

    provenance: Mapping[str, Any] = field(default_factory=dict)
    communities: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: Path | None = None
    spent: tuple[Spent, ...] = ()
    notes: tuple[str, ...] = ()
    reference: str = ""

    @property
    def manifests(self) -> Mapping[str, str]:
        """The SHA-256 of each site's manifest, where it was recorded."""
        return dict((self.provenance.get("data") or {}).get("sha256", {}))

    @property
    def idle(self) -> str:
        """Why the method had nothing of its own to do; empty where it had, or that is not known."""
        return str(self.provenance.get(NOTHING_TO_DO, ""))

    @property
    def minimum(self) -> int:
        """The smallest count that a report may show: of a simulation any, else ``MINIMUM``."""
        return 1 if self.provenance.get("simulated") else MIN_SHOWN


@dataclass(frozen=True, eq=False)
class ReadRun:
    """One run: how the report calls it, its vocabulary in the order of the model's outputs, and the three parts above."""

    name: str
    classes: tuple[str, ...]
    log: RunLog
    tests: Tests
    origin: Origin

    @property
    def task(self) -> Task:
        """What a label is."""
        return task_of(self.log.problem)

    def site_name(self, site: str) -> str:
        """What a site calls itself, where its own name has letters that an id has not."""
        data = self.origin.provenance.get("data") or {}
        return str(data.get("site_names", {}).get(site, site))

    @property
    def history(self) -> RunHistory:
        """What its figures over rounds are drawn from."""
        return RunHistory(self.log.events, self.log.sites, self.origin.communities, self.classes)


def tested_models(summary: Mapping[str, Any]) -> list[str]:
    """The models that were tested: ``common``, the one that the federation selected, and ``own``, each site's choice."""
    known = [*summary.get("records", {}).values(), summary.get(SUMMED_RECORDS, {})]
    return [model for model in MODELS if any(model in records for records in known)]


def reference_sentences(summary: Mapping[str, Any]) -> list[str]:
    """A sentence on each model that a simulation's run is compared with: what it is and what it took, or why it is missing.

    Example:
        >>> reference_sentences({"references": {"ridge": {"reason": "not computed: policy"}}})
        ['ridge: not computed: policy']
    """
    sentences = []
    for name, entry in summary.get(REFERENCES, {}).items():
        seconds = f" ({entry['cpu_seconds']:.0f} CPU seconds)" if entry.get("cpu_seconds") else ""
        sentences.append(f"{name}: {entry.get('reason') or entry['told'] + seconds}")
    return sentences


def expectation(summary: Mapping[str, Any]) -> list[str]:
    """What a hospital like none of these may expect: a ridge head of the others, tested at each hospital in turn.

    The head is that of the run itself or of its row ``ridge``. Means are over hospitals, with Student's interval from five
    on. There is no such sentence where sums of single sites are not known. If a simulation's sites are of several sources,
    the next sentence is of a head of the sites of other sources; it has no interval, as sites of a source are alike. The
    scores at each site that was held out follow.

    Example:
        >>> at = lambda auc: {"exact": {"auc_macro": auc}}
        >>> records = {site: {"common": at(0.9), "elsewhere": at(0.8)} for site in "abc"}
        >>> expectation({"records": records})
        ['expected at a hospital like none of these (ridge head of the others, at each of 3): AUROC 0.800 (with it 0.900)']
    """
    place, source = (
        "a hospital like none of these (ridge head of",
        "a source like none of these (ridge head of sites of",
    )
    return [
        *_expected(summary, ELSEWHERE, f"expected at {place} the others", FEWEST_HOSPITALS),
        *_expected(summary, OTHER_SOURCES, f"expected with {source} other sources", math.inf),
        *starmap(_held_out, summary.get(HELD_OUT, {}).items()),
    ]


def _expected(summary: Mapping[str, Any], model: str, head: str, for_interval: float) -> Iterator[str]:
    """Mean scores of a model of other sites over the sites at which it was tested, beside those of the model of all."""
    rows = summary.get(REFERENCES, {}).values()
    own = {site: tested[model] for site, tested in summary.get("records", {}).items() if model in tested}
    without = own or {site: record for row in rows for site, record in row.get(model, {}).items()}
    within = {site: record for row in rows for site, record in row.get("records", {}).items()}
    within |= {site: summary["records"][site]["common"] for site in own if "common" in summary["records"][site]}
    known = natural_sorted(without.keys() & within)
    pairs = [(without[site].get("exact", {}), within[site].get("exact", {})) for site in known]
    parts = []
    for name, title in SCORES_ELSEWHERE.items():
        values = [(others[name], its[name]) for others, its in pairs if name in others and name in its]
        if len(values) < 2:
            continue
        mean, *ends = mean_of_seeds([others for others, _ in values])
        low, high = np.clip(ends, *score_range(name))
        interval = f" [{low:.3f}, {high:.3f}]" if len(values) >= for_interval else ""
        fewer = f" at {len(values)}" if len(values) < len(pairs) else ""
        parts.append(f"{title} {mean:.3f}{interval}{fewer} (with it {fmean(its for _, its in values):.3f})")
    if parts:
        yield f"{head}, at each of {len(pairs)}): {', '.join(parts)}"


def _held_out(site: str, tested: Mapping[str, Any]) -> str:
    scores = [
        f"{SCORES_ELSEWHERE[name]} {value:.3f}" for name, value in tested["exact"].items() if name in SCORES_ELSEWHERE
    ]
    return f"at {site}, which was held out ({tested['images']} test images): {', '.join(scores) or 'no score'}"


ALWAYS_AT_SITES = "always"


@dataclass(frozen=True, eq=False)
class RunScores:
    """All scores of a run. No reader computes or hides a score.

    Attributes:
        sites: at each site.
        communities: of the sites of each community together.
        pooled: of all test images together; None without any.
        mean: unweighted means over sites; where some sites have no score, the name says over how many it is.
        mean_references: the same means of always predicting each site's most frequent class, of guessing, and of models
            beside the run's.
    """

    sites: Mapping[str, ScoreSheet] = field(default_factory=dict)
    communities: Mapping[str, ScoreSheet] = field(default_factory=dict)
    pooled: ScoreSheet | None = None
    mean: Mapping[str, Score] = field(default_factory=dict)
    mean_references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def best_mean(self, name: str) -> Score | None:
        """The mean of a score over the sites that have it, with its part where they are not all."""
        return next((score for key, score in self.mean.items() if key in (name, named(name, score))), None)

    def headline(self, metric: str) -> Score | None:
        """The score of all test images together; where it is not known, the mean over sites."""
        score = self.pooled.best(metric) if self.pooled else None
        return score if score and score.known else self.best_mean(metric) or score

    def by_site(self, metric: str) -> dict[str, Score]:
        """A score of all classes at each site that has it."""
        scores = {site: record.best(metric) for site, record in self.sites.items()}
        return {site: score for site, score in scores.items() if score.known}


def scores_of(run: ReadRun, minimum: int | None = None, hidden: Sequence[bool] = ()) -> RunScores:
    """All scores of a run; the same run always gives the same intervals.

    Args:
        run: with the records of its sites.
        minimum: smallest number of cases that may be shown; that of the run if None.
        hidden: classes whose counts are hidden everywhere.
    """
    records = {site: replace(one, stream=(site,)) for site, one in run.tests.sites.items() if one.images or one.exact}
    least = run.origin.minimum if minimum is None else minimum
    withheld = least > 1 or any(hidden)
    if not records:
        return RunScores(pooled=_sheet_of_all(run.tests, withheld, least, hidden))
    together = run.tests.together or _together(list(records.values()))
    groups = _communities(records, run.origin.communities)
    if withheld:
        records = _disclosed(records, least, hidden)
        together = _disclosed({"": together}, least, hidden)[""] if together else None
        groups = {name: replace(one, minimum=least, masked=True) for name, one in groups.items()}
    sites = {site: record.sheet for site, record in records.items()}
    return RunScores(
        sites,
        {name: record.sheet for name, record in groups.items()},
        together.sheet if together else None,
        mean_over_sites([sheet.scores for sheet in sites.values()]),
        mean_references(list(sites.values())),
    )


def _sheet_of_all(tests: Tests, withheld: bool, minimum: int, hidden: Sequence[bool]) -> ScoreSheet | None:
    """The scores of all images, where nothing is known of a site alone."""
    record = tests.together
    if record and tests.contributors and withheld:
        record = _disclosed({"": record}, minimum, hidden)[""]
    return record.sheet if record else None


def _together(records: Sequence[EvalRecord]) -> EvalRecord | None:
    """The record of all images; a policy may let scores out without the number of images, which a sum needs."""
    counted = [record for record in records if record.images]
    if not counted:
        return None
    part = f"{len(counted)} of {len(records)} sites" if len(counted) < len(records) else ""
    return replace(pooled(counted), part=part)


def _communities(records: Mapping[str, EvalRecord], communities: Mapping[str, str]) -> dict[str, EvalRecord]:
    """The record of the sites of each community together."""
    members: dict[str, list[EvalRecord]] = {}
    for site, record in records.items():
        if site in communities and record.questions:
            members.setdefault(communities[site], []).append(record)
    return {name: pooled(records, ("community", name)) for name, records in members.items()}


def mean_over_sites(sites: Sequence[Mapping[str, Score]]) -> dict[str, Score]:
    """Unweighted means over sites of scores over all classes, by a name that says so where a site has none."""
    whole = [{name: score for name, score in scores.items() if not score.of} for scores in sites]
    return {named(name, score): score for name, score in mean_over(whole, "sites").items()}


def mean_references(sites: Sequence[ScoreSheet]) -> dict[str, dict[str, float]]:
    """Means of the sites' references, each over the sites that are in the mean of the model's score.

    A site with few classes has high references, so those of all images together are no measure of a mean over sites.
    """
    kinds = {
        ALWAYS_AT_SITES: [sheet.always for sheet in sites],
        CHANCE: [sheet.references.get(CHANCE, {}) for sheet in sites],
        **{
            name: [sheet.references.get(name, {}) for sheet in sites]
            for name in dict.fromkeys(name for sheet in sites for name in sheet.models_beside)
        },
    }
    means = {kind: _reference_means(references, sites) for kind, references in kinds.items()}
    return {kind: values for kind, values in means.items() if values}


def _reference_means(references: Sequence[Mapping[str, float]], sites: Sequence[ScoreSheet]) -> dict[str, float]:
    means = {}
    for name in dict.fromkeys(name for sheet in sites for name in sheet.scores):
        scored = [row for row, sheet in zip(references, sites, strict=True) if sheet.score(name).known]
        if scored and all(name in row for row in scored):
            means[name] = round(fmean(row[name] for row in scored), 6)
    return means


def _disclosed(records: Mapping[str, EvalRecord], minimum: int, hidden: Sequence[bool]) -> dict[str, EvalRecord]:
    """The records without numbers of cases that must not be shown, and without scores of so few.

    Classes by site are a table whose sums are known, and so are the classes of all images together. A community is a sum of
    sites that are shown beside it, so nothing but its scores is shown. A simulation has nothing to hide.
    """
    behind = {name: one.images if one.cases is None else one.cases for name, one in records.items()}
    totals = shown_counts(behind, minimum)
    counts = np.array([record.positives for record in records.values()], np.int64)
    classes = suppressed(counts, minimum) | np.array(hidden or [False] * counts.shape[1])
    return {
        name: replace(record.without(hides), minimum=minimum, masked=totals[name] is None)
        for (name, record), hides in zip(records.items(), classes.tolist(), strict=True)
    }


NAMES: Mapping[str, str] = {"common": "selected", "own": "own"}
"""How tables call the models of a summary."""


class Row(NamedTuple):
    """A row: a site, ``mean``, ``pooled`` or a reference; images; accuracy of always predicting the most frequent class.

    ``scores`` are by the task's names of scores; each is one over all classes and sites, or over the part that it names.
    """

    name: str
    images: int | None
    majority: float | None
    scores: Mapping[str, Score]


def table_rows(run: ReadRun) -> list[Row]:
    """The rows for one model of a run: sites, their mean, all images together, and references."""
    scores, names = scores_of(run), run.task.scores
    rows = [_row(run.site_name(site), record, names) for site, record in scores.sites.items()]
    rows += [Row(run.site_name(site), 0, None, {}) for site in run.tests.sites if site not in scores.sites]
    if not run.tests.contributors:
        always = scores.mean_references.get(ALWAYS_AT_SITES, {}).get("accuracy")
        rows.append(Row("mean", None, always, _means(scores, names)))
    if scores.pooled:
        rows.append(_row("pooled", scores.pooled, names))
        for name, values in scores.pooled.references.items():
            known = {key: Score(values[key], values[key], values[key], None) for key in names if key in values}
            rows.append(Row(name, None, None, known))
    return rows


def _row(name: str, sheet: ScoreSheet, names: tuple[str, ...]) -> Row:
    return Row(name, sheet.images, sheet.always.get("accuracy"), {key: sheet.best(key) for key in names})


def _means(scores: RunScores, names: tuple[str, ...]) -> dict[str, Score]:
    return {name: scores.best_mean(name) or no_score("no site has it") for name in names}
