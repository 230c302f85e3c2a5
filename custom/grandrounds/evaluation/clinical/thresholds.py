r"""Thresholds of a positive group: an operating point fixed on images that have no part in the test, and decision curves.

Decision curves are the net benefit of treating the patients whose risk reaches a threshold.
Vickers and Elkin ("Decision curve analysis: a novel method for evaluating prediction models", Medical Decision Making 26,
2006): at threshold :math:`t` a false positive costs :math:`t / (1 - t)` of what a true positive gains,

.. math:: \mathrm{NB}(t) = \frac{\mathrm{TP}(t)}{n} - \frac{\mathrm{FP}(t)}{n} \cdot \frac{t}{1 - t}

Treating everybody has :math:`\pi - (1 - \pi) t / (1 - t)` with prevalence :math:`\pi`; treating no one has zero. A model
helps at the thresholds at which it is above both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.bootstrap import Cases, resampled_weights
from grandrounds.evaluation.clinical.binary import POSITIVE, positive_scores
from grandrounds.evaluation.confidence import SENSITIVITY, choose_operating_point
from grandrounds.evaluation.curves.binned import CurveCounts
from grandrounds.evaluation.curves.points import roc_points
from grandrounds.evaluation.score import MIN_CASES

THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 13))
DECISION_RESAMPLES = 500

Array = NDArray[np.float64]


class DecisionCurve(NamedTuple):
    """Net benefit per image at each threshold, all of shape ``(thresholds,)``, with the ends of its 95 % interval."""

    thresholds: Array
    model: Array
    low: Array
    high: Array
    treat_all: Array

    @property
    def useful(self) -> list[float]:
        """The thresholds at which even the lower end of the interval is above treating everybody and no one."""
        best = np.maximum(self.treat_all, 0)
        return [float(t) for t in self.thresholds[self.low > best + 1e-12]]


def net_benefit(
    positive: NDArray[np.bool_], scores: Array, thresholds: Array, weights: NDArray[np.floating] | None = None
) -> Array:
    """Net benefit at each threshold in (0, 1) for each weighting of the images.

    Args:
        positive: shape ``(n,)``.
        scores: risks in [0, 1], shape ``(n,)``.
        thresholds: shape ``(thresholds,)``.
        weights: shape ``(n, weightings)``; by default each image once.

    Returns:
        Shape ``(weightings, thresholds)``.

    Example:
        >>> net_benefit(np.array([True, False]), np.array([0.9, 0.6]), np.array([0.5, 0.8])).tolist()
        [[0.0, 0.5]]
    """
    once = np.ones((1, len(scores))) if weights is None else weights.T.astype(np.float64)
    called = scores[:, None] >= thresholds[None, :]
    true, false = once @ (called & positive[:, None]), once @ (called & ~positive[:, None])
    result: Array = (true - false * thresholds / (1 - thresholds)) / once.sum(axis=1, keepdims=True)
    return result


def decision_curve(cases: Cases, generator: np.random.Generator) -> DecisionCurve:
    """The curve of a positive group's cases at ``THRESHOLDS``, with an interval by bootstrap of the cases."""
    positive, scores = positive_scores(cases)
    thresholds = np.array(THRESHOLDS)
    model = net_benefit(positive, scores, thresholds)[0]
    blocks = resampled_weights(cases, generator, DECISION_RESAMPLES)
    draws = np.concatenate([net_benefit(positive, scores, thresholds, weights) for weights in blocks])
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    everybody = net_benefit(positive, np.ones(len(scores)), thresholds)[0]
    return DecisionCurve(thresholds, model, np.minimum(low, model), np.maximum(high, model), everybody)


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
