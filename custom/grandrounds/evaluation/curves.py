"""Curves that may leave a site: counts per range of scores, each of several patients, instead of a score per image.

A site divides [0, 1] into ranges of a class's probability and counts its cases of the class and others in each.
Neighbouring ranges are merged until each holds at least ``least`` cases of the class or none, and likewise of the others,
so that no count tells of fewer. The boundaries differ from site to site; the server adds the sites' distribution functions,
as if scores were spread evenly within a range.

A site's curves as one array of whole numbers, of the same shape whatever the site tells: so they travel and are checked.

All curves have boundaries among those of ``RANGES`` equal ranges. A count stands at its first range, and ``JOINED`` at those
that were merged with it; a row of nothing but ``JOINED`` is a class that is not told.

What a site tells of its curves: counts of several patients each, checked again by whoever reads them.

A site keeps its predictions. What a report needs of them for curves of all sites is, for each class and for the confidence
of the predictions, the counts of :mod:`grandrounds.evaluation.curves`. As a file they are ``curves_MODEL.json``.

A class that is left out must not be had by subtraction: where the classes that are told leave fewer than the least number
of cases for the others together, one more is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least
from grandrounds.errors import DataError
from grandrounds.evaluation.cases import Cases
from grandrounds.files import write_json

RANGES = 50
LEAST = 10


class SiteCurve(NamedTuple):
    """Counts of cases per range of a class's probability.

    Attributes:
        edges: rising boundaries from 0 to 1, shape ``(ranges + 1,)``.
        positives: cases of the class, shape ``(ranges,)``; whole numbers where one site counted.
        negatives: the others, likewise.
    """

    edges: NDArray[np.float64]
    positives: NDArray[np.float64]
    negatives: NDArray[np.float64]


class RocPoints(NamedTuple):
    """Points of a ROC curve, from (0, 0) to (1, 1)."""

    false_positive_rate: NDArray[np.float64]
    true_positive_rate: NDArray[np.float64]


class PrecisionRecall(NamedTuple):
    """Points of a precision-recall curve, recall rising to 1."""

    recall: NDArray[np.float64]
    precision: NDArray[np.float64]


class RiskCoverage(NamedTuple):
    """Points of a risk-coverage curve, coverage rising to 1."""

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]


def site_curve(cases: Cases, number: int, least: int = LEAST, ranges: int = RANGES) -> SiteCurve | None:
    """What a site may tell of a class's curve.

    Each case counts once on each side, with its highest probability there.

    Args:
        cases: with probabilities.
        number: of the class.
        least: fewest cases that a count other than zero may stand for.
        ranges: how many ranges there are before merging.

    Returns:
        None if there are no probabilities, or fewer than ``least`` cases of the class or of the others.

    Raises:
        ValueError: if ``least`` or ``ranges`` is below one.
    """
    require_at_least(least, 1, "least")
    require_at_least(ranges, 1, "ranges")
    if cases.probabilities is None:
        return None
    return _counted(cases, cases.probabilities[:, number], cases.labels == number, least, ranges)


def reliability_curve(cases: Cases, least: int = LEAST, ranges: int = RANGES) -> SiteCurve | None:
    """What a site may tell of how often its predictions are right when they are so sure.

    Args:
        cases: with probabilities.
        least: fewest cases that a count other than zero may stand for.
        ranges: how many ranges of confidence there are before merging.

    Returns:
        Right predictions as positives, wrong ones as negatives, by the confidence; each case counts once on each side, with
        its highest. None if there are no probabilities, or fewer than ``least`` cases on a side.

    Raises:
        ValueError: if ``least`` or ``ranges`` is below one.
    """
    require_at_least(least, 1, "least")
    require_at_least(ranges, 1, "ranges")
    if cases.probabilities is None:
        return None
    return _counted(cases, cases.probabilities.max(axis=1), cases.predicted == cases.labels, least, ranges)


def merged_curve(curve: SiteCurve, least: int) -> SiteCurve | None:
    """Merge neighbouring ranges until each count is zero or at least ``least``.

    Returns:
        None with fewer than ``least`` on a side.

    Example:
        >>> curve = SiteCurve(np.array([0.0, 0.5, 0.75, 1.0]), np.array([0.0, 1, 4]), np.array([9.0, 0, 0]))
        >>> merged_curve(curve, 3).edges, merged_curve(curve, 3).positives, merged_curve(curve, 6)
        (array([0. , 0.5, 1. ]), array([0., 5.]), None)
    """
    if min(curve.positives.sum(), curve.negatives.sum()) < least:
        return None
    kept = _supported(curve.positives.tolist(), curve.negatives.tolist(), least)
    merged = [np.add.reduceat(side, kept[:-1]) for side in (curve.positives, curve.negatives)]
    return SiteCurve(curve.edges[kept], *merged)


def summed_curves(curves: Sequence[SiteCurve]) -> SiteCurve:
    """The counts of several sites together, on all boundaries that any of them has.

    Raises:
        ValueError: if there is no curve.

    Example:
        >>> halves = SiteCurve(np.array([0.0, 0.5, 1.0]), np.array([10.0, 30.0]), np.array([15.0, 5.0]))
        >>> whole = SiteCurve(np.array([0.0, 1.0]), np.array([20.0]), np.array([40.0]))
        >>> summed_curves([halves, whole]).positives  # the second site's twenty are spread evenly
        array([20., 40.])
    """
    if not curves:
        raise ValueError("there are no curves")
    edges = np.unique(np.concatenate([curve.edges for curve in curves]))
    positives = sum_on(edges, [(curve.edges, curve.positives) for curve in curves])
    return SiteCurve(edges, positives, sum_on(edges, [(curve.edges, curve.negatives) for curve in curves]))


def roc_points(curve: SiteCurve) -> RocPoints:
    """The ROC curve at the boundaries of the ranges.

    Example:
        >>> curve = SiteCurve(np.array([0.0, 0.5, 1.0]), np.array([10, 30]), np.array([15, 5]))
        >>> roc_points(curve).true_positive_rate, roc_points(curve).false_positive_rate
        (array([0.  , 0.75, 1.  ]), array([0.  , 0.25, 1.  ]))
    """
    rates = [np.r_[0.0, np.cumsum(side[::-1]) / side.sum()] for side in (curve.negatives, curve.positives)]
    return RocPoints(*rates)


def precision_recall_points(curve: SiteCurve) -> PrecisionRecall:
    """Precision and recall at the boundaries of the ranges, from the highest on; ranges above all cases are left out.

    Example:
        >>> curve = SiteCurve(np.array([0.0, 0.5, 0.9, 1.0]), np.array([10, 30, 0]), np.array([50, 10, 0]))
        >>> precision_recall_points(curve)
        PrecisionRecall(recall=array([0.75, 1.  ]), precision=array([0.75, 0.4 ]))
    """
    true, false = (np.cumsum(side[::-1]) for side in (curve.positives, curve.negatives))
    some = true + false > 0
    return PrecisionRecall(true[some] / true[-1], true[some] / (true + false)[some])


def risk_points(sureness: SiteCurve) -> RiskCoverage:
    """Share of wrong predictions among those at least so sure, at the boundaries of the ranges.

    Args:
        sureness: right predictions as positives, wrong ones as negatives, see :func:`reliability_curve`.

    Example:
        >>> curve = SiteCurve(np.array([0.0, 0.8, 1.0]), np.array([10, 50]), np.array([30, 10]))
        >>> risk_points(curve).coverage.tolist(), risk_points(curve).risk.tolist()
        ([0.6, 1.0], [0.16666666666666666, 0.4])
    """
    right, wrong = (np.cumsum(side[::-1]) for side in (sureness.positives, sureness.negatives))
    some = right + wrong > 0
    together = (right + wrong)[some]
    return RiskCoverage(together / together[-1], wrong[some] / together)


def area(points: RocPoints) -> float:
    """Area under the points by the trapezoidal rule: ties within a range count half.

    Example:
        >>> area(RocPoints(np.array([0.0, 0.25, 1.0]), np.array([0.0, 0.75, 1.0])))
        0.75
    """
    heights = (points.true_positive_rate[1:] + points.true_positive_rate[:-1]) / 2
    return float(heights @ np.diff(points.false_positive_rate))


def sum_on(
    edges: NDArray[np.float64], counted: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]
) -> NDArray[np.float64]:
    """Counts on boundaries of their own, spread evenly within their ranges and added on other boundaries."""
    below = np.zeros(len(edges))
    for own, counts in counted:
        below += np.interp(edges, own, np.r_[0.0, np.cumsum(counts)])
    return np.diff(below)


def _counted(
    cases: Cases, scores: NDArray[np.float64], positive: NDArray[np.bool_], least: int, ranges: int
) -> SiteCurve | None:
    sides = [_highest(cases, scores, positive == side) for side in (True, False)]
    edges = np.linspace(0, 1, ranges + 1)
    counts = [np.histogram(np.clip(side, 0, 1), edges)[0].astype(np.float64) for side in sides]
    return merged_curve(SiteCurve(edges, *counts), least)


def _highest(cases: Cases, scores: NDArray[np.float64], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The highest score of each case among its chosen images."""
    highest = np.full(int(cases.groups.max(initial=-1)) + 1, -1.0)
    np.maximum.at(highest, cases.groups[chosen], scores[chosen])
    return highest[highest >= 0]


def _supported(positives: Sequence[float], negatives: Sequence[float], least: int) -> list[int]:
    """Places of the boundaries between which each count is zero or at least ``least``, rising."""
    kept, taken = [len(positives)], [0.0, 0.0]
    for place in range(len(positives) - 1, -1, -1):
        taken = [taken[0] + positives[place], taken[1] + negatives[place]]
        left = (sum(positives[:place]), sum(negatives[:place]))
        if all(_fits(count, least) for count in (*taken, *left)):
            kept.append(place)
            taken = [0.0, 0.0]
    # What is left below a boundary always fits, so the lowest range does as well.
    return kept[::-1]


def _fits(count: float, least: int) -> bool:
    return count == 0 or count >= least


COUNTS = "counts"
"""Name of the array where it is one among others."""
JOINED = -1


def counts_shape(classes: int) -> tuple[int, int, int]:
    """Of the array: a row for each class and one for reliability, positives and negatives, ranges."""
    return classes + 1, 2, RANGES


def counts_of(told: SiteCurves, classes: Sequence[str]) -> NDArray[np.int64]:
    """One site's curves as an array.

    Args:
        told: whole numbers on boundaries that are multiples of ``1 / RANGES``.
        classes: the vocabulary; the last row is reliability.

    Returns:
        Shape as :func:`counts_shape` says.
    """
    counts = np.full(counts_shape(len(classes)), JOINED, np.int64)
    for row, curve in zip(counts, [*map(told.classes.get, classes), told.reliability], strict=True):
        if curve is not None:
            row[:, np.rint(curve.edges[:-1] * RANGES).astype(np.int64)] = curve.positives, curve.negatives
    return counts


def curves_from(counts: NDArray[np.int64], classes: Sequence[str], least: int) -> SiteCurves:
    """The curves in an array that came from somebody else.

    Args:
        counts: see :func:`counts_of`.
        classes: the vocabulary.
        least: fewest cases that a count other than zero may stand for.

    Raises:
        ValueError: if the array has another shape or type, or a count stands for fewer.
    """
    if counts.shape != counts_shape(len(classes)) or counts.dtype != np.int64:
        raise ValueError(
            f"counts must be int64 of shape {counts_shape(len(classes))}, got {counts.dtype} {counts.shape}"
        )
    found = [_curve(row, least) for row in counts]
    known = {name: curve for name, curve in zip(classes, found, strict=False) if curve is not None}
    return SiteCurves(known, found[-1])


def _curve(row: NDArray[np.int64], least: int) -> SiteCurve | None:
    starts = row != JOINED
    if (starts[0] != starts[1]).any():
        raise ValueError("both sides of a curve must have the same ranges")
    if not starts.any():
        return None
    places = np.flatnonzero(starts[0])
    edges = np.append(places, RANGES) / RANGES
    return require_support(SiteCurve(edges, *row[:, places].astype(np.float64)), least)


class SiteCurves(NamedTuple):
    """What a site, or several together, tell of their curves.

    Attributes:
        classes: ROC counts by class; those with too few cases are not there.
        reliability: right and wrong predictions by confidence; None with too few of either.
    """

    classes: Mapping[str, SiteCurve]
    reliability: SiteCurve | None


def curves_of(cases: Cases, classes: Sequence[str], least: int = LEAST) -> SiteCurves:
    """What a site may tell of its predictions.

    Args:
        cases: with probabilities.
        classes: the vocabulary.
        least: fewest cases that a count other than zero may stand for.

    Raises:
        ValueError: if ``least`` is below one.
    """
    found = {name: site_curve(cases, number, least) for number, name in enumerate(classes)}
    return SiteCurves(_without_small_rest(found, least), reliability_curve(cases, least))


def coarser_curves(told: SiteCurves, least: int) -> SiteCurves:
    """The same with ``least`` cases or more behind each count, and of fewer classes where that is needed."""
    found = {name: merged_curve(curve, least) for name, curve in told.classes.items()}
    sureness = merged_curve(told.reliability, least) if told.reliability else None
    return SiteCurves(_without_small_rest(found, least), sureness)


def curves_together(sites: Sequence[SiteCurves], classes: Sequence[str]) -> SiteCurves:
    """The counts of several sites together; of each class those of the sites that tell of it."""
    of_class = {name: [one.classes[name] for one in sites if name in one.classes] for name in classes}
    sureness = [one.reliability for one in sites if one.reliability is not None]
    return SiteCurves(
        {name: summed_curves(curves) for name, curves in of_class.items() if curves},
        summed_curves(sureness) if sureness else None,
    )


def write_curves(path: Path, curves: SiteCurves, least: int = LEAST) -> None:
    """Write what a site tells, with the least number of cases behind a count."""
    content = {
        "least": least,
        "classes": {name: _plain(curve) for name, curve in curves.classes.items()},
        "reliability": _plain(curves.reliability) if curves.reliability else None,
    }
    write_json(path, content)


def read_curves(path: Path, classes: Sequence[str]) -> SiteCurves:
    """Read what a site tells.

    Args:
        path: the site's file.
        classes: the run's vocabulary.

    Raises:
        DataError: if the file is damaged, of another vocabulary, or a count stands for fewer cases than the file says.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        unknown = [name for name in content["classes"] if name not in classes]
        if unknown:
            raise DataError(f"{path} is of another vocabulary than its run: {unknown[0]!r} is no class of it")
        least = int(content["least"])
        found = {name: _curve_of_entry(entry, least) for name, entry in content["classes"].items()}
        told = content["reliability"]
        return SiteCurves(found, _curve_of_entry(told, least) if told else None)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no file of a site's curves ({error}); ask the site for it again") from error


def require_support(curve: SiteCurve, least: int) -> SiteCurve:
    """Check a curve that somebody else has counted.

    Raises:
        ValueError: if boundaries and counts do not fit together, or a count stands for fewer than ``least`` cases.
    """
    ranges = len(curve.edges) - 1
    if ranges < 1 or curve.positives.shape != (ranges,) or curve.negatives.shape != (ranges,):
        raise ValueError("there must be a boundary more than counts")
    if curve.edges[0] != 0 or curve.edges[-1] != 1 or not (np.diff(curve.edges) > 0).all():
        raise ValueError("boundaries must rise from 0 to 1")
    counts = np.concatenate([curve.positives, curve.negatives])
    if not np.isfinite(counts).all() or ((counts != 0) & (counts < max(least, 1))).any():
        raise ValueError(f"a count must be 0 or at least {max(least, 1)}")
    if not (curve.positives.any() and curve.negatives.any()):
        raise ValueError("a curve must have cases on both sides")
    return curve


def _plain(curve: SiteCurve) -> dict[str, list[float]]:
    return {"edges": curve.edges.tolist(), "positives": curve.positives.tolist(), "negatives": curve.negatives.tolist()}


def _curve_of_entry(entry: Mapping[str, Any], least: int) -> SiteCurve:
    return require_support(SiteCurve(*(np.asarray(entry[name], np.float64) for name in SiteCurve._fields)), least)


def _without_small_rest(found: Mapping[str, SiteCurve | None], least: int) -> dict[str, SiteCurve]:
    """The classes that may be told: the smallest is left out while the others would give away a rest of few cases."""
    told = {name: curve for name, curve in found.items() if curve is not None}
    while any(0 < rest < least for rest in _rests(told)):
        del told[min(told, key=lambda name: told[name].positives.sum())]
    return told


def _rests(told: Mapping[str, SiteCurve]) -> list[float]:
    """What each class's curve, less all classes' cases, says of the cases of those that are not told."""
    of_told = sum(float(curve.positives.sum()) for curve in told.values())
    return [float(curve.positives.sum() + curve.negatives.sum()) - of_told for curve in told.values()]
