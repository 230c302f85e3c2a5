"""Comparison of methods: which runs are paired, by seed or by test case, and over which sites."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.bootstrap import RESAMPLES, Cases, joined, resampled_confusions
from grandrounds.evaluation.comparisons import MIN_SEEDS, Difference, difference_of_cases, holm, paired_by_seed
from grandrounds.evaluation.metrics import confusion_scores
from grandrounds.ordering import natural_sorted
from grandrounds.reporting.run import Run
from grandrounds.reporting.scores import RunScores
from grandrounds.seeding import numpy_generator

METRIC, AUROC, FINDING_METRIC = "balanced_accuracy", "auroc", "auc_macro"
NOT_COMPARED = ("seed", "run_name", "resume")
"""Options in which seeds of one method may differ."""


@dataclass(frozen=True)
class Comparison:
    """Several methods, each against the reference.

    Attributes:
        metric: what is compared: the score of all test images of the sites that both methods have.
        reference: the method that the others are compared with.
        differences: of each other method to the reference: paired by seed, or of two fixed models on the same test cases.
        adjusted: their p-values, corrected for the number of comparisons by Holm's method.
        relative: the differences in percent of the reference; NaN where it is zero.
        seeds: how many runs each method has.
        left_out: methods that cannot be paired with the reference.
    """

    metric: str
    reference: str
    differences: Mapping[str, Difference]
    adjusted: Mapping[str, float]
    relative: Mapping[str, float]
    seeds: Mapping[str, int]
    left_out: tuple[str, ...]

    def row(self, method: str) -> dict[str, Any]:
        """A method's difference as plain values; null for what is not known."""
        more = {"adjusted_p": self.adjusted[method], "relative_improvement_percent": self.relative[method]}
        return {name: _plain(value) for name, value in {**asdict(self.differences[method]), **more}.items()}

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "metric": self.metric,
            "reference": self.reference,
            "differences": {method: self.row(method) for method in self.differences},
            "seeds": dict(self.seeds),
            "left_out": list(self.left_out),
        }


def compare(
    methods: Mapping[str, Sequence[Run]], scores: Mapping[str, RunScores], reference: str, metric: str = METRIC
) -> Comparison | None:
    """Compare methods with a reference.

    With ``MIN_SEEDS`` seeds that both have, results are paired by seed. With fewer, two models are compared on their test
    cases, which must be the same; where these are not known the difference has no interval. A method without a run to pair
    is left out and named. ``scores`` are by name of run.

    Returns:
        None if no other method can be compared with the reference.
    """
    others = [method for method in methods if method != reference]
    found: dict[str, tuple[Difference, float]] = {}
    for method in others:
        pairs = _pairs(methods[method], methods[reference])
        values = [value for pair in pairs if (value := _values(pair, scores, metric))]
        of_cases = _of_cases(pairs, metric, len(others)) if 0 < len(values) < MIN_SEEDS else None
        if of_cases:
            found[method] = of_cases
        elif values:
            ours, theirs = zip(*values, strict=True)
            found[method] = paired_by_seed(ours, theirs, len(others)), fmean(theirs)
    if not found:
        return None
    return Comparison(
        metric=metric,
        reference=reference,
        differences={method: difference for method, (difference, _) in found.items()},
        adjusted=holm({method: difference.p_value for method, (difference, _) in found.items()}),
        relative={
            method: relative_improvement(base + difference.mean, base) if base > 0 else math.nan
            for method, (difference, base) in found.items()
        },
        seeds={method: len(methods[method]) for method in (reference, *found)},
        left_out=tuple(method for method in others if method not in found),
    )


def methods_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in their seed alone, under one name.

    Returns:
        Runs by method; a method of one run has the run's name, one of several their names without the seed at the end.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_key(run), []).append(run)
    found: dict[str, list[Run]] = {}
    for members in groups.values():
        seeds = {run.log.seed for run in members}
        if len(members) == 1 or len(seeds) < len(members):
            found |= {run.name: [run] for run in members}
        else:
            name = re.sub(r"[\s_.-]*(seed)?[\s_.-]*\d+$", "", members[0].name) or members[0].name
            found[name if name not in found else members[0].name] = members
    return found


def require_one_vocabulary(runs: Sequence[Run]) -> None:
    """Check that all runs have the same classes.

    Raises:
        ConfigurationError: naming two runs whose classes differ, or are in another order.
    """
    first = runs[0]
    for run in runs[1:]:
        if (run.classes, run.task.name) != (first.classes, first.task.name):
            raise ConfigurationError(
                f"{first.name} and {run.name} have different classes ({', '.join(first.classes)}; "
                f"{', '.join(run.classes)}), so no score of theirs can be compared; report on them one by one"
            )


def relative_improvement(value: float, reference: float) -> float:
    r"""Relative improvement over a reference, in percent: :math:`\mathrm{RI}(a|b) = 100 (a - b) / b`.

    Raises:
        ValueError: if the reference is not above zero.

    Example:
        >>> round(relative_improvement(0.747, 0.647), 3)
        15.456
    """
    if not reference > 0:
        raise ValueError(f"reference must be above 0, got {reference}")
    return 100 * (value - reference) / reference


def _pairs(runs: Sequence[Run], reference: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Runs of the same seed; of two methods with one run each these two."""
    by_seed = {run.log.seed: run for run in reference}
    found = [(run, by_seed[run.log.seed]) for run in runs if run.log.seed is not None and run.log.seed in by_seed]
    return found or ([(runs[0], reference[0])] if len(runs) == len(reference) == 1 else [])


def _values(pair: tuple[Run, Run], scores: Mapping[str, RunScores], metric: str) -> tuple[float, float] | None:
    """The score of both runs over all test images of the sites that both have; None without any."""
    if not any(run.tests.predictions for run in pair):
        known = [scores[run.name].headline(metric) for run in pair]
        first, second = (one.value if one and one.known else math.nan for one in known)
        return None if math.isnan(first) or math.isnan(second) else (first, second)
    sites = natural_sorted(set(pair[0].tests.predictions) & set(pair[1].tests.predictions))
    if not sites:
        return None
    first, second = (_score(joined([run.tests.predictions[site] for site in sites]), metric) for run in pair)
    return None if math.isnan(first) or math.isnan(second) else (first, second)


def _score(cases: Cases, metric: str) -> float:
    found = confusion_scores(cases.confusion())
    return float(found[metric]) if metric in found else math.nan


def _of_cases(pairs: Sequence[tuple[Run, Run]], metric: str, comparisons: int) -> tuple[Difference, float] | None:
    """The difference on the same test cases, mean over the pairs, and the reference's score; None without any."""
    draws, values, cases = [], [], 0
    for first, second in pairs:
        sites = [
            site
            for site in natural_sorted(set(first.tests.predictions) & set(second.tests.predictions))
            if _same_images(first.tests.predictions[site], second.tests.predictions[site])
        ]
        if not sites:
            return None
        both = [[run.tests.predictions[site] for site in sites] for run in (first, second)]
        together = [joined(parts) for parts in both]
        if metric not in (known := confusion_scores(together[0].confusion())):
            return None
        base = float(confusion_scores(together[1].confusion())[metric])
        values.append((float(known[metric]), base))
        # Both models are drawn with the same cases: the stream depends on the site alone.
        resampled = [
            sum(
                resampled_confusions(part, numpy_generator("comparison", site), RESAMPLES)
                for site, part in zip(sites, parts, strict=True)
            )
            for parts in both
        ]
        ours, theirs = (confusion_scores(np.asarray(one))[metric] for one in resampled)
        draws.append(ours - theirs)
        cases = together[0].count
    value = fmean(ours - theirs for ours, theirs in values)
    difference = difference_of_cases(value, np.mean(draws, axis=0), cases, comparisons)
    return difference, fmean(base for _, base in values)


def _same_images(first: Cases, second: Cases) -> bool:
    """Whether two sets of predictions are of the same images in the same order, as far as labels and cases tell."""
    known = first.probabilities is not None and second.probabilities is not None
    return known and np.array_equal(first.labels, second.labels) and np.array_equal(first.groups, second.groups)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value


def _key(run: Run) -> str:
    shared = {name: value for name, value in run.log.configuration.items() if name not in NOT_COMPARED}
    return json.dumps(
        [run.log.method, shared, dict(run.origin.options), list(run.log.sites)], sort_keys=True, default=str
    )
