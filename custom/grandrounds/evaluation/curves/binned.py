"""Binned counts of a site's predictions, from which curves can be drawn without a score per image leaving the site.

A site divides [0, 1] into bins of a class's probability (or of the confidence) and counts its patients with the class and
without it in each. Neighbouring bins are merged until every count is zero or at least ``minimum`` patients. A class with
fewer patients is left out, and one more where the others would give it away by subtraction (complementary suppression).
Bin edges differ from site to site; the server adds the sites' distribution functions, as if scores were spread evenly within
a bin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least
from grandrounds.evaluation.bootstrap import Cases

BINS = 50
"""All edges are multiples of ``1 / BINS``."""
MINIMUM = 10

Array = NDArray[np.float64]


class CurveCounts(NamedTuple):
    """Patients per bin of a score, with the class (or a correct prediction) and without; whole numbers from one site.

    ``edges`` rise from 0 to 1, shape ``(bins + 1,)``; the counts have shape ``(bins,)``.
    """

    edges: Array
    positives: Array
    negatives: Array


class SiteCurves(NamedTuple):
    """The counts of a site, or of several together; None or not there with too few patients.

    Attributes:
        classes: by class, over its probability.
        reliability: correct and wrong predictions over the confidence.
    """

    classes: Mapping[str, CurveCounts]
    reliability: CurveCounts | None


def site_curves(questions: Sequence[Cases], names: Sequence[str], minimum: int = MINIMUM) -> SiteCurves:
    """The counts that may leave a site, each zero or of ``minimum`` patients; without probabilities there are none.

    Classes of one question exclude each other, so counts of some could give away the others; those of different questions
    do not. The reliability is that of a single question.
    """
    vocabulary = iter(names)
    classes: dict[str, CurveCounts] = {}
    for cases in questions:
        if cases.probabilities is None:
            return SiteCurves({}, None)
        scores = cases.probabilities
        curves = {
            name: binned_counts(cases, scores[:, row], cases.labels == row, minimum)
            for row, name in zip(cases.rows, vocabulary, strict=False)
        }
        classes |= _suppressed(curves, minimum)
    if len(questions) > 1:
        return SiteCurves(classes, None)
    confidence, correct = scores.max(axis=1), cases.predicted == cases.labels
    return SiteCurves(classes, binned_counts(cases, confidence, correct, minimum))


def binned_counts(
    cases: Cases, scores: Array, positive: NDArray[np.bool_], minimum: int = MINIMUM, bins: int = BINS
) -> CurveCounts | None:
    """Count patients by their highest score, in [0, 1], among positive images, and among the others.

    Returns:
        None with fewer than ``minimum`` patients on a side.

    Raises:
        ValueError: if ``minimum`` or ``bins``, their number before merging, is below one.
    """
    require_at_least(minimum, 1, "minimum")
    require_at_least(bins, 1, "bins")
    edges = np.linspace(0, 1, bins + 1)
    sides = [_highest(cases, scores, positive == side) for side in (True, False)]
    counts = [np.histogram(np.clip(side, 0, 1), edges)[0].astype(np.float64) for side in sides]
    return merge_bins(CurveCounts(edges, *counts), minimum)


def merge_bins(counts: CurveCounts, minimum: int) -> CurveCounts | None:
    """Merge neighbouring bins until each count is zero or at least ``minimum``; None with fewer than this on a side.

    Example:
        >>> counts = CurveCounts(np.array([0.0, 0.5, 0.75, 1.0]), np.array([0.0, 1, 4]), np.array([9.0, 0, 0]))
        >>> merge_bins(counts, 3).edges, merge_bins(counts, 3).positives, merge_bins(counts, 6)
        (array([0. , 0.5, 1. ]), array([0., 5.]), None)
    """
    if min(counts.positives.sum(), counts.negatives.sum()) < minimum:
        return None
    kept = _supported(counts.positives.tolist(), counts.negatives.tolist(), minimum)
    merged = [np.add.reduceat(side, kept[:-1]) for side in (counts.positives, counts.negatives)]
    return CurveCounts(counts.edges[kept], *merged)


def coarsen_curves(curves: SiteCurves, minimum: int) -> SiteCurves:
    """The same with at least ``minimum`` patients behind each count, and without the classes that this leaves out."""
    merged = {name: merge_bins(counts, minimum) for name, counts in curves.classes.items()}
    return SiteCurves(
        _suppressed(merged, minimum), merge_bins(curves.reliability, minimum) if curves.reliability else None
    )


def sum_curves(sites: Sequence[SiteCurves], classes: Sequence[str]) -> SiteCurves:
    """The counts of several sites together; of each class those of the sites that have counts of it."""
    of_class = {name: [site.classes[name] for site in sites if name in site.classes] for name in classes}
    reliability = [site.reliability for site in sites if site.reliability is not None]
    return SiteCurves(
        {name: sum_counts(counts) for name, counts in of_class.items() if counts},
        sum_counts(reliability) if reliability else None,
    )


def sum_counts(sites: Sequence[CurveCounts]) -> CurveCounts:
    """Add the counts of several sites on all edges that any of them has.

    Example:
        >>> halves = CurveCounts(np.array([0.0, 0.5, 1.0]), np.array([10.0, 30.0]), np.array([15.0, 5.0]))
        >>> whole = CurveCounts(np.array([0.0, 1.0]), np.array([20.0]), np.array([40.0]))
        >>> sum_counts([halves, whole]).positives  # the second site's twenty are spread evenly
        array([20., 40.])
    """
    if not sites:
        raise ValueError("there are no counts")
    edges = np.unique(np.concatenate([site.edges for site in sites]))
    return CurveCounts(
        edges,
        _sum_on(edges, [(site.edges, site.positives) for site in sites]),
        _sum_on(edges, [(site.edges, site.negatives) for site in sites]),
    )


def _suppressed(curves: Mapping[str, CurveCounts | None], minimum: int) -> dict[str, CurveCounts]:
    """The classes that may be reported: the smallest is left out while the others would give away a rest of few patients."""
    kept = {name: counts for name, counts in curves.items() if counts is not None}
    while any(0 < rest < minimum for rest in _rests(kept)):
        del kept[min(kept, key=lambda name: kept[name].positives.sum())]
    return kept


def _rests(kept: Mapping[str, CurveCounts]) -> list[float]:
    """Patients of the classes left out, as each kept class's counts give them by subtraction."""
    together = sum(float(counts.positives.sum()) for counts in kept.values())
    return [float(counts.positives.sum() + counts.negatives.sum()) - together for counts in kept.values()]


def _highest(cases: Cases, scores: Array, chosen: NDArray[np.bool_]) -> Array:
    """The highest score of each case among its chosen images."""
    highest = np.full(int(cases.groups.max(initial=-1)) + 1, -1.0)
    np.maximum.at(highest, cases.groups[chosen], scores[chosen])
    return highest[highest >= 0]


def _supported(positives: Sequence[float], negatives: Sequence[float], minimum: int) -> list[int]:
    """Indices of the edges between which each count is zero or at least ``minimum``, rising."""
    kept, taken = [len(positives)], [0.0, 0.0]
    for index in range(len(positives) - 1, -1, -1):
        taken = [taken[0] + positives[index], taken[1] + negatives[index]]
        left = (sum(positives[:index]), sum(negatives[:index]))
        if all(_fits(count, minimum) for count in (*taken, *left)):
            kept.append(index)
            taken = [0.0, 0.0]
    # What is left below an edge always fits, so the lowest bin does as well.
    return kept[::-1]


def _fits(count: float, minimum: int) -> bool:
    return count == 0 or count >= max(minimum, 1)


def _sum_on(edges: Array, counted: Sequence[tuple[Array, Array]]) -> Array:
    """Counts on edges of their own, spread evenly within their bins and added on other edges."""
    below = np.zeros(len(edges))
    for own, counts in counted:
        below += np.interp(edges, own, np.r_[0.0, np.cumsum(counts)])
    return np.diff(below)
