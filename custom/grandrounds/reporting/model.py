"""The content of a report as values, from which the page, the tables and the JSON file are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from grandrounds.checks import did_you_mean
from grandrounds.errors import ConfigurationError
from grandrounds.evaluation import comparisons
from grandrounds.evaluation.bootstrap import joined_questions
from grandrounds.evaluation.confidence import OperatingPoint, at_threshold, choose_operating_point
from grandrounds.evaluation.score import MIN_CASES, Score, no_score
from grandrounds.federation.server.record import Traffic
from grandrounds.ordering import natural_sorted
from grandrounds.plain import to_plain
from grandrounds.protocol.task import Task
from grandrounds.reporting.caveats import caveats_of, caveats_of_comparison
from grandrounds.reporting.comparison import AUROC, Comparison, chance_of, compare, methods_of, require_one_vocabulary
from grandrounds.reporting.external.result import ExternalResult
from grandrounds.reporting.population import population_json, settings_of
from grandrounds.reporting.run import ReadRun, RunScores, Tests, scores_of

if TYPE_CHECKING:
    from grandrounds.reporting.local import Examples

MAX_DETAILED_RUNS = 4

Operation = tuple[OperatingPoint, Mapping[str, Score]]


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """A run with what the report says about it.

    Attributes:
        run: as it was read.
        scores: without what must not be shown.
        caveats: the most serious first.
        points: by class a threshold chosen on validation images and its scores on test images; empty where there are no
            predictions of validation images.
    """

    run: ReadRun
    scores: RunScores
    caveats: Sequence[str]
    points: Mapping[str, Operation]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        log, tests = self.run.log, self.run.tests
        course = ("method", "seed", "status", "reason", "rounds", "rounds_done", "seconds")
        return {
            "name": self.run.name,
            **{name: to_plain(getattr(log, name)) for name in (*course, "sites", "untested", "selected")},
            "model": tests.model,
            "case": tests.unit,
            "communities": dict(self.run.origin.communities),
            "dropped": log.dropped(),
            "bytes": log.traffic._asdict(),
            "privacy": [
                {"site": spent.site, "unit": spent.unit, "epsilon": spent.epsilon, "delta": spent.delta}
                for spent in self.run.origin.spent
            ],
            "scores": to_plain(self.scores),
            "reference": self.run.origin.reference,
            "operating_points": {
                name: {**to_plain(point), "test": to_plain(test)} for name, (point, test) in self.points.items()
            },
            "caveats": list(self.caveats),
            "versions": dict(log.versions),
            "population": population_json(self.run),
            "settings": dict(settings_of(self.run)),
        }


@dataclass(frozen=True, eq=False)
class Method:
    """Runs that differ in their seed alone, as one.

    Attributes:
        runs: its seeds.
        seeds: the first score of each seed that has one.
        score: the number of the first screen: their mean.
        second: the score beside it.
        sites: the first score at each site that has a test.
        traffic: mean over the seeds.
    """

    runs: Sequence[ReportedRun]
    seeds: Sequence[Score]
    score: Score | None
    second: Score | None
    sites: Mapping[str, Score]
    traffic: Traffic


@dataclass(frozen=True, eq=False)
class Report:
    """One or more runs, their scores, comparison and caveats.

    Attributes:
        title: of the page.
        task: of all runs.
        classes: of all runs.
        metric: the score of the first screen.
        runs: by name, in the order they were given.
        methods: by name.
        comparison: None for one method, or where there is nothing to compare.
        caveats: of the comparison.
        places: results of external evaluations.
        examples: images for the page alone, of a simulation on this machine; not in the other files.
    """

    title: str
    task: Task
    classes: tuple[str, ...]
    metric: str
    runs: Mapping[str, ReportedRun]
    methods: Mapping[str, Method]
    comparison: Comparison | None
    caveats: Sequence[str]
    places: Sequence[ExternalResult] = ()
    examples: Examples | None = None

    @property
    def first(self) -> ReportedRun:
        """The run that is given first, or alone."""
        return next(iter(self.runs.values()))

    @property
    def sites(self) -> list[str]:
        """The sites of all runs: their order gives each its colour."""
        return natural_sorted({site for reported in self.runs.values() for site in reported.run.log.sites})

    @property
    def chance(self) -> float:
        """The value of the first score for random guessing."""
        return chance_of(self.metric, len(self.classes)) or 0.0

    @property
    def several(self) -> bool:
        """Whether there is more than one run."""
        return len(self.runs) > 1

    def to_json(self) -> dict[str, Any]:
        """Plain values; no name of an image, a patient or a lesion is among them."""
        return {
            "title": self.title,
            "classes": list(self.classes),
            "min_cases": MIN_CASES,
            "runs": to_plain(list(self.runs.values())),
            "methods": {
                name: {"runs": [reported.run.name for reported in method.runs], self.metric: to_plain(method.score)}
                for name, method in self.methods.items()
            },
            "comparison": self.comparison.to_json() if self.comparison else None,
            "caveats": list(self.caveats),
            "external": [place.to_json() for place in self.places],
        }


def report_on(
    runs: Sequence[ReadRun],
    title: str | None = None,
    reference: str | None = None,
    places: Sequence[ExternalResult] = (),
    examples: Examples | None = None,
) -> Report:
    """Compute the report of some runs with different names.

    Without a title it is made of the methods' names; without a reference, the method to compare with, local runs are it, or
    the first. ``places`` are results of external evaluations, ``examples`` images for the page.

    Raises:
        ConfigurationError: if the runs have different vocabularies, or there is no method of the reference's name.
    """
    require_one_vocabulary(runs)
    members = methods_of(runs)
    if reference is not None and reference not in members:
        raise ConfigurationError(
            f"--reference: no method {reference!r}{did_you_mean(reference, members)} (methods: {', '.join(members)})"
        )
    task, reported = runs[0].task, {run.name: reported_run(run) for run in runs}
    metric = _first_metric(task, [one.scores for one in reported.values()])
    methods = {
        name: _method([reported[run.name] for run in seeds], metric, task.second_metric)
        for name, seeds in members.items()
    }
    local = next((name for name, seeds in members.items() if seeds[0].log.is_local), next(iter(members)))
    headlines = {name: one.scores.headline(metric) for name, one in reported.items()}
    comparison = compare(members, headlines, reference or local, metric) if len(members) > 1 else None
    shared = caveats_of_comparison(members, reference or local, comparison)
    title = title or f"Report: {', '.join(members)}"
    return Report(title, task, runs[0].classes, metric, reported, methods, comparison, shared, places, examples)


def reported_run(run: ReadRun) -> ReportedRun:
    """A run with its scores and what to distrust in them."""
    scores = scores_of(run)
    return ReportedRun(run, scores, caveats_of(run, scores), operating_points(run.tests, run.classes))


def operating_points(tests: Tests, classes: Sequence[str]) -> dict[str, Operation]:
    """Thresholds chosen on all sites' validation images together, and what they do on the test images.

    By class; classes with too few validation cases are left out, without probabilities all.
    """
    validation, test = list(tests.validation.values()), list(tests.questions.values())
    if tests.model != "common" or not validation or not test:
        return {}
    names = iter(classes)
    points: dict[str, Operation] = {}
    for chosen_on, tested_on in zip(joined_questions(validation), joined_questions(test), strict=True):
        for number, name in zip(chosen_on.rows, names, strict=False):
            point = choose_operating_point(chosen_on, number)
            if point is not None and tested_on.probabilities is not None:
                points[name] = (point, at_threshold(tested_on, number, point.threshold))
    return points


def seeds_score(scores: Sequence[Score | None]) -> Score | None:
    """One score of several seeds: their mean, with Student's interval over three or more; None where no seed has it.

    Of one seed, or of seeds that gave one model, it is that seed's own, whose interval is of test cases. Scores over
    different parts of the classes have no mean.
    """
    given = [score for score in scores if score]
    known = [score for score in given if score.known]
    if len(known) <= 1:
        return (known or given)[0] if given else None
    if len({(score.value, score.cases) for score in known}) == 1:
        return known[0]  # of one model, however often it was made
    if len({score.of for score in known}) > 1:
        return no_score("seeds have scores over different classes")
    mean, low, high = comparisons.mean_of_seeds([score.value for score in known])
    cases = min((score.cases for score in known if score.cases is not None), default=None)
    return Score(mean, max(low, 0.0), min(high, 1.0), cases, of=known[0].of)


def _first_metric(task: Task, scores: Sequence[RunScores]) -> str:
    """The task's own; the area under the ROC curve where results have only that."""
    known = [
        {*score.mean, *(score.pooled.scores if score.pooled else ())} for score in scores if score.mean or score.pooled
    ]
    shared = set.intersection(*known) if known else set()
    return AUROC if AUROC in shared and task.default_metric not in shared else task.default_metric


def _method(runs: Sequence[ReportedRun], metric: str, second: str) -> Method:
    first = [run.scores.headline(metric) for run in runs]
    beside = [run.scores.pooled.best(second) if run.scores.pooled else None for run in runs]
    at_sites = [run.scores.by_site(metric) for run in runs]
    names = natural_sorted({site for scores in at_sites for site in scores})
    sites = {site: score for site in names if (score := seeds_score([scores.get(site) for scores in at_sites]))}
    sizes = zip(*(reported.run.log.traffic for reported in runs), strict=True)
    return Method(
        runs,
        [score for score in first if score and score.known],
        seeds_score(first),
        seeds_score(beside),
        sites,
        Traffic(*(round(fmean(column)) for column in sizes)),
    )
