"""All that a report says, as values: the page, the tables and the JSON file are made of this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.cases import joined
from grandrounds.evaluation.communication import Traffic, traffic
from grandrounds.evaluation.estimates import FEWEST_CASES, Estimate
from grandrounds.evaluation.operating_point import OperatingPoint, at_threshold, choose_operating_point
from grandrounds.ordering import natural_sorted
from grandrounds.reporting.comparison import METRIC, Comparison, compare
from grandrounds.reporting.distrust import doubts_of, doubts_of_comparison
from grandrounds.reporting.label import methods_of, require_one_vocabulary
from grandrounds.reporting.run import Run
from grandrounds.reporting.scores import RunScores, scores_of
from grandrounds.seeding import numpy_generator

Operation = tuple[OperatingPoint, Mapping[str, Estimate]]


@dataclass(frozen=True, eq=False)
class Report:
    """One or more runs, and everything that is said of them.

    Attributes:
        title: of the page.
        runs: in the order they were named.
        methods: runs by method; several are seeds of one.
        scores: by name of run.
        doubts: what to distrust, by name of run.
        comparison: None for one method, or where there is nothing to compare.
        shared_doubts: what to distrust about the comparison.
        operations: by name of run and class, a threshold chosen on validation images and its scores on test images; empty
            where validation images are not at hand.
    """

    title: str
    runs: Sequence[Run]
    methods: Mapping[str, Sequence[Run]]
    scores: Mapping[str, RunScores]
    doubts: Mapping[str, Sequence[str]]
    comparison: Comparison | None
    shared_doubts: Sequence[str]
    operations: Mapping[str, Mapping[str, Operation]] = field(default_factory=dict)

    @property
    def sites(self) -> list[str]:
        """The sites of all runs: their order gives each its colour."""
        return natural_sorted({site for run in self.runs for site in run.sites})

    @property
    def several(self) -> bool:
        """Whether there is more than one run."""
        return len(self.runs) > 1

    def to_json(self) -> dict[str, Any]:
        """Plain values; no name of an image, a patient or a lesion is among them."""
        return {
            "title": self.title,
            "classes": list(self.runs[0].classes),
            "fewest_cases": FEWEST_CASES,
            "runs": [self._run_json(run) for run in self.runs],
            "methods": {method: [run.name for run in runs] for method, runs in self.methods.items()},
            "comparison": self.comparison.to_json() if self.comparison else None,
            "distrust": list(self.shared_doubts),
        }

    def _run_json(self, run: Run) -> dict[str, Any]:
        operations = self.operations.get(run.name, {})
        return {
            "name": run.name,
            "method": run.method,
            "seed": run.seed,
            "status": run.status,
            "reason": run.reason,
            "rounds": run.rounds,
            "rounds_done": run.rounds_done,
            "model": run.model,
            "case": run.unit,
            "sites": list(run.sites),
            "communities": dict(run.communities),
            "dropped": run.dropped(),
            "untested": list(run.untested),
            "selected": dict(run.selected),
            "seconds": run.seconds,
            "bytes": moved(run)._asdict(),
            "privacy": [
                {"site": spent.site, "unit": spent.unit, "epsilon": spent.epsilon, "delta": spent.delta}
                for spent in run.spent
            ],
            "scores": self.scores[run.name].to_json(run.classes),
            "operating_points": {
                name: {**point._asdict(), "test": {key: value.to_json() for key, value in test.items()}}
                for name, (point, test) in operations.items()
            },
            "distrust": list(self.doubts[run.name]),
            "versions": dict(run.versions),
        }


def report_on(
    runs: Sequence[Run],
    title: str | None = None,
    reference: str | None = None,
    operations: Mapping[str, Mapping[str, Operation]] | None = None,
) -> Report:
    """Compute everything that is said of some runs.

    Args:
        runs: at least one, with different names.
        title: of the page; made of the runs' names without one.
        reference: the method to compare with; without one the local runs, else the first.
        operations: operating points by name of run and class.

    Raises:
        ConfigurationError: if the runs have different vocabularies, or there is no method of the reference's name.
    """
    require_one_vocabulary(runs)
    scores = {run.name: scores_of(run) for run in runs}
    methods = methods_of(runs)
    if reference is not None and reference not in methods:
        raise ConfigurationError(f"--reference: there is no method {reference!r}; there are {', '.join(methods)}")
    compared = None
    if len(methods) > 1:
        local = next((method for method, members in methods.items() if members[0].is_local), next(iter(methods)))
        compared = compare(methods, scores, reference or local)
    return Report(
        title=title or f"Report: {', '.join(methods)}",
        runs=list(runs),
        methods=methods,
        scores=scores,
        doubts={run.name: doubts_of(run, scores[run.name]) for run in runs},
        comparison=compared,
        shared_doubts=doubts_of_comparison(methods, compared),
        operations=operations or {},
    )


def operating_points(run: Run, validation: Mapping[str, Any]) -> dict[str, Operation]:
    """Thresholds chosen on all sites' validation images together, and what they do on the test images.

    Args:
        run: with probabilities for its test images.
        validation: cases of validation images by site.

    Returns:
        By class; those with too few validation cases are left out.
    """
    if not validation or not run.places or any(cases.probabilities is None for cases in run.places.values()):
        return {}
    chosen_on, tested_on = joined(list(validation.values())), joined(list(run.places.values()))
    found: dict[str, Operation] = {}
    for number, name in enumerate(run.classes):
        point = choose_operating_point(chosen_on, number)
        if point is not None:
            test = at_threshold(tested_on, number, point.threshold, numpy_generator("report", "operating point", name))
            found[name] = (point, test)
    return found


def moved(run: Run) -> Traffic:
    """Bytes of a run's tensors, over all sites."""
    return traffic(run.bytes)


def headline(scores: RunScores) -> Estimate | None:
    """The number of the first screen: mean balanced accuracy over sites."""
    return scores.mean.get(METRIC)
