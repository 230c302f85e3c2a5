"""Areas under the curves of a test with two outcomes, malignant and not.

The area under the precision-recall curve is the trapezoid's, as mammography papers and Fed-Align-CL report it. It joins
points that no threshold reaches, so it is a little above the average precision (Davis & Goadrich, ICML 2006).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

POSITIVE = 1


class CurveAreas(NamedTuple):
    """Areas from 0 to 1; NaN where one of the classes is missing.

    Attributes:
        roc: under the receiver operating characteristic.
        precision_recall: under the precision-recall curve, by trapezoids.
    """

    roc: float
    precision_recall: float


def curve_areas(labels: Sequence[int], scores: Sequence[float]) -> CurveAreas:
    """Both areas of a score that should be higher for the positive class.

    Args:
        labels: 1 for positive, 0 for negative.
        scores: any numbers that rise with the belief in the positive class, finite.

    Raises:
        ValueError: if the lengths differ, a label is neither 0 nor 1, or a score is not finite.

    Example:
        >>> roc, precision_recall = curve_areas([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
        >>> round(roc, 6), round(precision_recall, 6)
        (0.75, 0.791667)
    """
    truth, values = np.asarray(labels), np.asarray(scores, np.float64)
    if truth.shape != values.shape or truth.ndim != 1:
        raise ValueError(f"labels and scores must have one length, got {truth.shape} and {values.shape}")
    if not np.isin(truth, (0, POSITIVE)).all() or not np.isfinite(values).all():
        raise ValueError("labels must be 0 or 1 and scores finite")
    if len(np.unique(truth)) < 2:
        return CurveAreas(math.nan, math.nan)
    from sklearn.metrics import auc, precision_recall_curve, roc_auc_score

    precision, recall, _ = precision_recall_curve(truth, values)
    return CurveAreas(float(roc_auc_score(truth, values)), float(auc(recall, precision)))
