"""Points of curves at the edges of bins, or exact where predictions are here."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.curves.binned import Array, CurveCounts


class Points(NamedTuple):
    """Points of a curve in drawing order, ``across`` rising to 1."""

    across: Array
    up: Array


def roc_points(counts: CurveCounts) -> Points:
    """The ROC curve at the bin edges: false positive rate across, true positive rate up.

    Example:
        >>> counts = CurveCounts(np.array([0.0, 0.5, 1.0]), np.array([10, 30]), np.array([15, 5]))
        >>> roc_points(counts)
        Points(across=array([0.  , 0.25, 1.  ]), up=array([0.  , 0.75, 1.  ]))
    """
    return Points(*(np.r_[0.0, np.cumsum(side[::-1]) / side.sum()] for side in (counts.negatives, counts.positives)))


def precision_recall_points(counts: CurveCounts) -> Points:
    """Recall across and precision up at the bin edges, from the highest on; bins above all patients are left out.

    Example:
        >>> counts = CurveCounts(np.array([0.0, 0.5, 0.9, 1.0]), np.array([10, 30, 0]), np.array([50, 10, 0]))
        >>> precision_recall_points(counts)
        Points(across=array([0.75, 1.  ]), up=array([0.75, 0.4 ]))
    """
    true, false = (np.cumsum(side[::-1]) for side in (counts.positives, counts.negatives))
    some = true + false > 0
    return Points(true[some] / true[-1], true[some] / (true + false)[some])


def exact_counts(positive: NDArray[np.bool_], scores: NDArray[np.floating]) -> CurveCounts:
    """Images by their scores, a bin for each distinct score, for the exact curve of predictions that are here.

    Example:
        >>> roc_points(exact_counts(np.array([True, False, True]), np.array([0.9, 0.4, 0.4])))
        Points(across=array([0., 0., 1.]), up=array([0. , 0.5, 1. ]))
    """
    values, index = np.unique(scores, return_inverse=True)
    sides = (np.bincount(index[side], minlength=len(values)).astype(np.float64) for side in (positive, ~positive))
    return CurveCounts(np.r_[values, 1.0], *sides)


def risk_points(reliability: CurveCounts) -> Points:
    """Coverage across and risk up: the share of wrong predictions (negatives) among those with at least a bin's confidence.

    Example:
        >>> points = risk_points(CurveCounts(np.array([0.0, 0.8, 1.0]), np.array([10, 50]), np.array([30, 10])))
        >>> points.across.tolist(), points.up.tolist()
        ([0.6, 1.0], [0.16666666666666666, 0.4])
    """
    right, wrong = (np.cumsum(side[::-1]) for side in (reliability.positives, reliability.negatives))
    some = right + wrong > 0
    together = (right + wrong)[some]
    return Points(together / together[-1], wrong[some] / together)


def area_under(points: Points) -> float:
    """Area under points by the trapezoidal rule; of a ROC curve, ties within a bin count half.

    Example:
        >>> area_under(Points(np.array([0.0, 0.25, 1.0]), np.array([0.0, 0.75, 1.0])))
        0.75
    """
    return float((points.up[1:] + points.up[:-1]) / 2 @ np.diff(points.across))
