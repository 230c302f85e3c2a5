"""A site's curves as one array of whole numbers, of the same shape whatever the site tells: so they travel and are checked.

All curves have boundaries among those of ``RANGES`` equal ranges. A count stands at its first range, and ``JOINED`` at those
that were merged with it; a row of nothing but ``JOINED`` is a class that is not told.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.curve_release import SiteCurves, require_support
from grandrounds.evaluation.site_curves import RANGES, SiteCurve

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
