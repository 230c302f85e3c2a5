"""The operating point of a positive group: a threshold fixed on images that have no part in the test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.clinical.binary import POSITIVE
from grandrounds.evaluation.confidence import SENSITIVITY, choose_operating_point
from grandrounds.evaluation.curves.binned import CurveCounts
from grandrounds.evaluation.curves.points import roc_points
from grandrounds.evaluation.score import MIN_CASES


@dataclass(frozen=True)
class FixedPoint:
    """A threshold, and where it comes from.

    Attributes:
        threshold: an image is called positive if its probability reaches it.
        source: a phrase for people.
        sensitivity: among the images it was fixed on; None if it was stated and not fixed on images.
        specificity: likewise.
        cases: positive cases among those images; 0 if it was stated.
    """

    threshold: float
    source: str
    sensitivity: float | None = None
    specificity: float | None = None
    cases: int = 0


def point_of_cases(validation: Cases, source: str, sensitivity: float = SENSITIVITY) -> FixedPoint | None:
    """The highest threshold that finds this share of the positive images; None with too few cases on a side.

    ``validation`` are the cases of a positive group, see :func:`~grandrounds.evaluation.clinical.binary.binary_cases`.
    """
    point = choose_operating_point(validation, POSITIVE, sensitivity)
    if point is None:
        return None
    return FixedPoint(point.threshold, source, point.sensitivity, point.specificity, point.cases)


def point_of_counts(counts: CurveCounts, source: str, sensitivity: float = SENSITIVITY) -> FixedPoint | None:
    """The highest edge of the sites' binned counts above which this share of the positive cases is; None with too few.

    Example:
        >>> counts = CurveCounts(np.array([0.0, 0.5, 1.0]), np.array([10, 30]), np.array([55, 5]))
        >>> point_of_counts(counts, "validation", 0.7).threshold, point_of_counts(counts, "validation", 0.9).threshold
        (0.5, 0.0)
    """
    if min(counts.positives.sum(), counts.negatives.sum()) < MIN_CASES:
        return None
    curve = roc_points(counts)
    place = int(np.flatnonzero(curve.up >= sensitivity - 1e-9)[0])
    threshold = float(counts.edges[::-1][place])
    reached, false = float(curve.up[place]), float(curve.across[place])
    return FixedPoint(threshold, source, reached, 1 - false, round(float(counts.positives.sum())))
