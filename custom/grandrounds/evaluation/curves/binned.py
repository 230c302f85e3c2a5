"""Binned counts of a site's predictions, from which curves can be drawn without a score per image leaving the site.

A site divides [0, 1] into bins of a class's probability (or of the confidence) and counts its patients with the class and
without it in each. Neighbouring bins are merged until every count is zero or at least ``minimum`` patients. A class with
fewer patients is left out, and one more where the others would give it away by subtraction (complementary suppression).
Bin edges differ from site to site; :mod:`~grandrounds.evaluation.curves.summed` adds them up. The counts travel as an
integer array of a fixed shape, and are the file ``curves_MODEL.json``; every reader checks them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.errors import DataError
from grandrounds.files import write_json

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


def merge_bins(counts: CurveCounts, minimum: int) -> CurveCounts | None:
    """Merge neighbouring bins until each count is zero or at least ``minimum``; None with fewer than this on a side.

    Example:
        >>> counts = CurveCounts(np.array([0.0, 0.5, 0.75, 1.0]), np.array([0.0, 1, 4]), np.array([9.0, 0, 0]))
        >>> merge_bins(counts, 3).edges, merge_bins(counts, 3).positives, merge_bins(counts, 6)
        (array([0. , 0.5, 1. ]), array([0., 5.]), None)
    """
    if min(counts.positives.sum(), counts.negatives.sum()) < minimum:
        return None
    return merge_to(counts, supported_edges(counts.positives.tolist(), counts.negatives.tolist(), minimum))


def merge_to(counts: CurveCounts, kept: Sequence[int]) -> CurveCounts:
    """The counts between some of their edges, which have the first and the last."""
    sides = (np.add.reduceat(side, kept[:-1]) for side in (counts.positives, counts.negatives))
    return CurveCounts(counts.edges[kept], *sides)


def coarsen_curves(curves: SiteCurves, minimum: int) -> SiteCurves:
    """The same with at least ``minimum`` patients behind each count, and without the classes that this leaves out."""
    merged = {name: merge_bins(counts, minimum) for name, counts in curves.classes.items()}
    return SiteCurves(
        reportable_curves(merged, minimum), merge_bins(curves.reliability, minimum) if curves.reliability else None
    )


def reportable_curves(curves: Mapping[str, CurveCounts | None], minimum: int) -> dict[str, CurveCounts]:
    """The classes that may be reported: the smallest is left out while the others would give away a rest of few patients."""
    kept = {name: counts for name, counts in curves.items() if counts is not None}
    while any(0 < rest < minimum for rest in _rests(kept)):
        del kept[min(kept, key=lambda name: kept[name].positives.sum())]
    return kept


def _rests(kept: Mapping[str, CurveCounts]) -> list[float]:
    """Patients of the classes left out, as each kept class's counts give them by subtraction."""
    together = sum(float(counts.positives.sum()) for counts in kept.values())
    return [float(counts.positives.sum() + counts.negatives.sum()) - together for counts in kept.values()]


def supported_edges(positives: Sequence[float], negatives: Sequence[float], minimum: int) -> list[int]:
    """Indices of the edges between which each count of both sides is zero or at least ``minimum``, rising."""
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


MERGED = -1
"""In the array: the bin was merged with the one below it; a row of nothing else is a class that is left out."""
CURVE_COUNTS = "counts"
"""Name of the array in a message."""


def curves_shape(classes: int) -> tuple[int, int, int]:
    """Shape of the array: a row for each class and one for reliability; positives and negatives; bins."""
    return classes + 1, 2, BINS


def encode_counts(curves: SiteCurves, classes: Sequence[str]) -> NDArray[np.int64]:
    """One site's counts as an array of :func:`curves_shape`; the last row is reliability."""
    array = np.full(curves_shape(len(classes)), MERGED, np.int64)
    for row, counts in zip(array, [*map(curves.classes.get, classes), curves.reliability], strict=True):
        if counts is not None:
            row[:, np.rint(counts.edges[:-1] * BINS).astype(np.int64)] = counts.positives, counts.negatives
    return array


def decode_counts(array: NDArray[np.int64], classes: Sequence[str], minimum: int) -> SiteCurves:
    """Decode counts that another party has made with :func:`encode_counts`, and check them.

    Raises:
        ValueError: if the array has another shape or type, or a count stands for fewer than ``minimum`` patients.
    """
    if array.shape != curves_shape(len(classes)) or array.dtype != np.int64:
        raise ValueError(f"counts must be int64 of shape {curves_shape(len(classes))}, got {array.dtype} {array.shape}")
    decoded = [_decoded(row, minimum) for row in array]
    known = {name: counts for name, counts in zip(classes, decoded, strict=False) if counts is not None}
    return SiteCurves(known, decoded[-1])


def write_curves(path: Path, curves: SiteCurves, classes: Sequence[str]) -> None:
    """Write a site's counts with the vocabulary and the minimum behind a count."""
    counts = encode_counts(curves, classes).tolist()
    write_json(path, {"minimum": MINIMUM, "classes": list(classes), CURVE_COUNTS: counts})


def read_curves(path: Path, classes: Sequence[str]) -> SiteCurves:
    """Read a site's counts.

    Raises:
        DataError: if the file is damaged, of another vocabulary, or a count stands for fewer patients than the file says.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["classes"] != list(classes):
            raise DataError(
                f"{path} is of another vocabulary than its run: expected {', '.join(classes)}, got "
                f"{', '.join(map(str, content['classes']))}"
            )
        array = np.array(content[CURVE_COUNTS])
        return decode_counts(array, classes, int(content["minimum"]))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no file of a site's curves ({error}); ask the site for it again") from error


def _decoded(row: NDArray[np.int64], minimum: int) -> CurveCounts | None:
    starts = row != MERGED
    if (starts[0] != starts[1]).any():
        raise ValueError("both sides of a curve must have the same bins")
    if not starts.any():
        return None
    first = np.flatnonzero(starts[0])
    if first[0] != 0:
        raise ValueError("the bins must begin at 0")
    counts = CurveCounts(np.append(first, BINS) / BINS, *row[:, first].astype(np.float64))
    if any(count != 0 and count < max(minimum, 1) for side in counts[1:] for count in side.tolist()):
        raise ValueError(f"a count must be 0 or at least {max(minimum, 1)}")
    if not (counts.positives.any() and counts.negatives.any()):
        raise ValueError("a curve must have cases on both sides")
    return counts
