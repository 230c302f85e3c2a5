"""The content of a report as values, from which the page, the tables and the JSON file are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation import comparisons
from grandrounds.evaluation.bootstrap import joined_questions
from grandrounds.evaluation.score import MIN_CASES, Score
from grandrounds.evaluation.selective import OperatingPoint, at_threshold, choose_operating_point
from grandrounds.ordering import natural_sorted
from grandrounds.reporting.caveats import caveats_of, caveats_of_comparison
from grandrounds.reporting.comparison import (
    AUROC,
    FINDING_METRIC,
    METRIC,
    Comparison,
    compare,
    methods_of,
    require_one_vocabulary,
)
from grandrounds.reporting.population import population_json, settings_of
from grandrounds.reporting.run import Run
from grandrounds.reporting.scores import RunScores, scores_of

MAX_DETAILED_RUNS = 4

Operation = tuple[OperatingPoint, Mapping[str, Score]]


@dataclass(frozen=True, eq=False)
class Report:
    """One or more runs, their scores, comparison and caveats.

    Attributes:
        title: of the page.
        runs: in the order they were named.
        methods: runs by method; several are seeds of one.
        scores: by name of run.
        caveats: by name of run.
        comparison: None for one method, or where there is nothing to compare.
        shared_caveats: of the comparison.
        operations: by name of run and class, a threshold chosen on validation images and its scores on test images; empty
            where there are no predictions of validation images.
        places: results of external evaluations, see :mod:`~grandrounds.reporting.external.result`.
    """

    title: str
    runs: Sequence[Run]
    methods: Mapping[str, Sequence[Run]]
    scores: Mapping[str, RunScores]
    caveats: Mapping[str, Sequence[str]]
    comparison: Comparison | None
    shared_caveats: Sequence[str]
    operations: Mapping[str, Mapping[str, Operation]] = field(default_factory=dict)
    places: Sequence[Mapping[str, Any]] = ()

    @property
    def sites(self) -> list[str]:
        """The sites of all runs: their order gives each its colour."""
        return natural_sorted({site for run in self.runs for site in run.log.sites})

    @property
    def metric(self) -> str:
        """The score of the first screen: balanced accuracy, or the area under the ROC curve of findings or alone."""
        if self.multi:
            return FINDING_METRIC
        known = [
            {*scores.mean, *(scores.pooled.scores if scores.pooled else ())}
            for scores in self.scores.values()
            if scores.mean or scores.pooled
        ]
        shared = set.intersection(*known) if known else set()
        return AUROC if AUROC in shared and METRIC not in shared else METRIC

    @property
    def chance(self) -> float:
        """The value of that score for random guessing."""
        return 0.5 if self.metric in (AUROC, FINDING_METRIC) else 1 / len(self.runs[0].classes)

    @property
    def multi(self) -> bool:
        """Whether the classes are findings."""
        return not self.runs[0].task.exclusive

    @property
    def second_metric(self) -> str:
        """The score beside that of the first screen."""
        return METRIC if self.multi else "accuracy"

    @property
    def several(self) -> bool:
        """Whether there is more than one run."""
        return len(self.runs) > 1

    def to_json(self) -> dict[str, Any]:
        """Plain values; no name of an image, a patient or a lesion is among them."""
        return {
            "title": self.title,
            "classes": list(self.runs[0].classes),
            "min_cases": MIN_CASES,
            "runs": [self._run_json(run) for run in self.runs],
            "methods": {method: self._method_json(method) for method in self.methods},
            "comparison": self.comparison.to_json() if self.comparison else None,
            "caveats": list(self.shared_caveats),
            "external": [dict(place) for place in self.places],
        }

    def _method_json(self, method: str) -> dict[str, Any]:
        estimate = over_seeds(self, method)
        return {
            "runs": [run.name for run in self.methods[method]],
            self.metric: estimate.to_json() if estimate else None,
        }

    def _run_json(self, run: Run) -> dict[str, Any]:
        operations = self.operations.get(run.name, {})
        return {
            "name": run.name,
            "method": run.log.method,
            "seed": run.log.seed,
            "status": run.log.status,
            "reason": run.log.reason,
            "rounds": run.log.rounds,
            "rounds_done": run.log.rounds_done,
            "model": run.tests.model,
            "case": run.tests.unit,
            "sites": list(run.log.sites),
            "communities": dict(run.origin.communities),
            "dropped": run.log.dropped(),
            "untested": list(run.log.untested),
            "selected": dict(run.log.selected),
            "seconds": run.log.seconds,
            "bytes": run.log.traffic._asdict(),
            "privacy": [
                {"site": spent.site, "unit": spent.unit, "epsilon": spent.epsilon, "delta": spent.delta}
                for spent in run.origin.spent
            ],
            "scores": self.scores[run.name].to_json(),
            "operating_points": {
                name: {**point._asdict(), "test": {key: value.to_json() for key, value in test.items()}}
                for name, (point, test) in operations.items()
            },
            "caveats": list(self.caveats[run.name]),
            "versions": dict(run.log.versions),
            "population": population_json(run),
            "settings": dict(settings_of(run)),
        }


def report_on(
    runs: Sequence[Run],
    title: str | None = None,
    reference: str | None = None,
    places: Sequence[Mapping[str, Any]] = (),
) -> Report:
    """Compute the report of some runs with different names.

    Without a title it is made of the methods' names; without a reference, the method to compare with, local runs are it, or
    the first. ``places`` are results of external evaluations.

    Raises:
        ConfigurationError: if the runs have different vocabularies, or there is no method of the reference's name.
    """
    require_one_vocabulary(runs)
    scores = {run.name: scores_of(run) for run in runs}
    methods = methods_of(runs)
    if reference is not None and reference not in methods:
        raise ConfigurationError(f"--reference: there is no method {reference!r}; there are {', '.join(methods)}")
    report = Report(
        title=title or f"Report: {', '.join(methods)}",
        runs=list(runs),
        methods=methods,
        scores=scores,
        caveats={run.name: caveats_of(run, scores[run.name]) for run in runs},
        comparison=None,
        shared_caveats=(),
        operations={run.name: operating_points(run) for run in runs},
        places=places,
    )
    if len(methods) > 1:
        local = next((method for method, members in methods.items() if members[0].log.is_local), next(iter(methods)))
        report = replace(report, comparison=compare(methods, scores, reference or local, report.metric))
    return replace(report, shared_caveats=caveats_of_comparison(methods, report.comparison))


def operating_points(run: Run) -> dict[str, Operation]:
    """Thresholds chosen on all sites' validation images together, and what they do on the test images.

    By class; classes with too few validation cases are left out, without probabilities all.
    """
    validated, tested = list(run.tests.validation.values()), list(run.tests.questions.values())
    if run.tests.model != "common" or not validated or not tested:
        return {}
    names = iter(run.classes)
    found: dict[str, Operation] = {}
    for chosen_on, tested_on in zip(joined_questions(validated), joined_questions(tested), strict=True):
        for number, name in zip(chosen_on.rows, names, strict=False):
            point = choose_operating_point(chosen_on, number)
            if point is not None and tested_on.probabilities is not None:
                found[name] = (point, at_threshold(tested_on, number, point.threshold))
    return found


def over_seeds(report: Report, method: str) -> Score | None:
    """The number of the first screen for a method."""
    return seeds_score([report.scores[run.name].headline(report.metric) for run in report.methods[method]])


def site_estimates(report: Report, method: str) -> dict[str, Score]:
    """The same score of a method at each site that has a test."""
    of_runs = [report.scores[run.name].by_site(report.metric) for run in report.methods[method]]
    found = {site: seeds_score([scores.get(site) for scores in of_runs]) for site in report.sites}
    return {site: estimate for site, estimate in found.items() if estimate}


def seeds_score(estimates: Sequence[Score | None]) -> Score | None:
    """One estimate of several seeds: their mean, with Student's interval over three or more; None where no seed has it.

    Of one seed it is that seed's own, whose interval is of test cases.
    """
    found = [estimate for estimate in estimates if estimate]
    known = [estimate for estimate in found if estimate.known]
    if len(known) <= 1:
        return (known or found)[0] if found else None
    mean, low, high = comparisons.mean_of_seeds([estimate.value for estimate in known])
    return Score(
        mean, max(low, 0.0), min(high, 1.0), min((one.cases for one in known if one.cases is not None), default=None)
    )
