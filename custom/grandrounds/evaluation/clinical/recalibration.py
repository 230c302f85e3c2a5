r"""Calibration of the probability of a positive group, and its correction.

Calibration is by the logistic model :math:`\operatorname{logit} P(y = 1) = a + b \operatorname{logit} p`, Cox's ("Two
further applications of a model for binary regression", Biometrika 45, 1958). Its slope :math:`b` is one for a calibrated
model, below one for an overconfident one; the intercept is fitted with the slope fixed at one ("calibration in the
large"; Van Calster et al., "Calibration: the Achilles heel of predictive analytics", BMC Medicine 17, 2019): above zero
where risks are too low.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.bootstrap import Cases, resampled_weights
from grandrounds.evaluation.clinical.binary import positive_scores
from grandrounds.evaluation.clinical.results import Calibration
from grandrounds.evaluation.intervals import Z, interval_of
from grandrounds.evaluation.score import Score

SMALLEST = 1e-7
"""Probabilities are kept this far from 0 and 1, where their logit is infinite."""
MAX_STEPS = 50
MAX_SLOPE = 100.0
ECE_RESAMPLES = 200
ECE_BINS = 10

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Recalibration:
    r"""A fitted correction, :math:`p' = \sigma(a + \operatorname{logit}(p) / T)`: intercept ``a``, temperature ``T``."""

    intercept: float
    temperature: float

    def apply(self, probabilities: Array) -> Array:
        """The corrected probabilities, shape ``(n,)``; their order does not change."""
        return _sigmoid(self.intercept + logit(probabilities) / self.temperature)


def logit(probabilities: Array) -> Array:
    """Log odds, of probabilities clipped to [1e-7, 1 - 1e-7]."""
    clipped = np.clip(probabilities, SMALLEST, 1 - SMALLEST)
    return np.log(clipped) - np.log1p(-clipped)


def fit_recalibration(cases: Cases) -> Recalibration | None:
    """Fit intercept and temperature by maximum likelihood; None if the classes are separable or the slope not positive."""
    positive, scores = positive_scores(cases)
    offset = logit(scores)
    if _separable(positive, offset):
        return None
    fitted = _fit(positive, np.stack([np.ones(len(scores)), offset], axis=1), np.zeros(len(scores)))
    if fitted is None or not 0 < fitted[1] <= MAX_SLOPE:
        return None
    return Recalibration(float(fitted[0]), float(1 / fitted[1]))


def calibration_of(cases: Cases, generator: np.random.Generator) -> Calibration:
    """Slope, intercept, calibration error and Brier score of a positive group, with 95 % intervals.

    The calibration error is that of the group's probability, not of the confidence, in ten bins of equal width: adaptive
    bins become one where risks are near 0 and 1, and risks that are too high and too low cancel in it. Resampling adds
    noise to it, so its interval is shifted until the draws' mean is the estimate.
    """
    return Calibration(**calibration_line(cases), **_errors(cases, generator))


def calibration_line(cases: Cases) -> dict[str, Score]:
    """``slope``, NaN where a threshold separates the classes or all probabilities are equal, and ``intercept``.

    Where a threshold separates them, the likelihood grows with the slope for ever (Albert and Anderson, Biometrika 71,
    1984); the intercept, fitted at slope one, is finite, and NaN only where there are images of one class alone. The
    intervals are Wald's with the sandwich variance over cases (Liang and Zeger, Biometrika 73, 1986).
    """
    positive, scores = positive_scores(cases)
    behind = int(min(cases.positives()[1], cases.negatives()[1]))
    offset, ones = logit(scores), np.ones((len(scores), 1))
    line = np.stack([np.ones(len(scores)), offset], axis=1)
    nothing = Score(math.nan, math.nan, math.nan, behind)
    separable = _separable(positive, offset)
    slope = nothing if separable else _wald(positive, line, np.zeros(len(scores)), cases.groups, behind, column=1)
    return {"slope": slope, "intercept": _wald(positive, ones, offset, cases.groups, behind, column=0)}


def _separable(positive: NDArray[np.bool_], scores: Array) -> bool:
    """Whether a threshold has all positive images on one side of it and all others on the other; both may touch it."""
    with_it, without = scores[positive], scores[~positive]
    if not len(with_it) or not len(without):
        return True
    return bool(without.max() <= with_it.min() or with_it.max() <= without.min())


def _errors(cases: Cases, generator: np.random.Generator) -> dict[str, Score]:
    positive, scores = positive_scores(cases)
    behind = int(min(cases.positives()[1], cases.negatives()[1]))
    value = _expected_error(scores, positive)
    squares = (scores - positive) ** 2
    draws, brier = [], []
    for weight in (weights for block in resampled_weights(cases, generator, ECE_RESAMPLES) for weights in block.T):
        rows = np.repeat(np.arange(len(scores)), weight.astype(np.int64))
        draws.append(_expected_error(scores[rows], positive[rows]))
        brier.append(squares[rows].mean())
    low, high = np.quantile(draws, [0.025, 0.975]) - np.mean(draws) + value
    score, (least, most) = float(squares.mean()), interval_of(np.array(brier))
    return {
        "ece": Score(value, min(max(float(low), 0.0), value), max(float(high), value), behind),
        "brier": Score(score, min(least, score), max(most, score), behind),
    }


def _expected_error(scores: Array, positive: NDArray[np.bool_]) -> float:
    """Mean over the images of the gap of their bin, in [0, 1]."""
    bins = np.minimum((scores * ECE_BINS).astype(np.int64), ECE_BINS - 1)
    return float(np.abs(np.bincount(bins, scores - positive)).sum() / len(scores))


def _wald(
    positive: NDArray[np.bool_], design: Array, offset: Array, groups: NDArray[np.int64], cases: int, column: int
) -> Score:
    fitted = _fit(positive, design, offset) if 0 < positive.sum() < len(positive) else None
    if fitted is None or abs(fitted[column]) > MAX_SLOPE:
        return Score(math.nan, math.nan, math.nan, cases)
    predicted = _sigmoid(design @ fitted + offset)
    bread = np.linalg.inv(design.T @ (design * (predicted * (1 - predicted))[:, None]))
    _, index = np.unique(groups, return_inverse=True)
    sums = np.zeros((index.max() + 1, design.shape[1]))
    np.add.at(sums, index, design * (positive - predicted)[:, None])
    correction = len(sums) / max(len(sums) - 1, 1)
    variance = correction * bread @ (sums.T @ sums) @ bread
    value, deviation = float(fitted[column]), math.sqrt(max(float(variance[column, column]), 0.0))
    return Score(value, value - Z * deviation, value + Z * deviation, cases)


def _fit(positive: NDArray[np.bool_], design: Array, offset: Array) -> Array | None:
    """Maximum likelihood by Newton's method with halved steps; None where there is no finite maximum."""
    coefficients = np.zeros(design.shape[1])
    best = _likelihood(positive, design @ coefficients + offset)
    for _ in range(MAX_STEPS):
        predicted = _sigmoid(design @ coefficients + offset)
        gradient = design.T @ (positive - predicted)
        curvature = design.T @ (design * (predicted * (1 - predicted))[:, None])
        if np.linalg.cond(curvature) > 1e12:
            return None
        step = np.linalg.solve(curvature, gradient)
        while (now := _likelihood(positive, design @ (coefficients + step) + offset)) < best - 1e-12 and abs(
            step
        ).max() > 1e-12:
            step = step / 2
        coefficients, gained, best = coefficients + step, now - best, now
        if abs(step).max() < 1e-9 or gained < 1e-13:
            return coefficients
    return None


def _likelihood(positive: NDArray[np.bool_], scores: Array) -> float:
    return float(-np.logaddexp(0, np.where(positive, -scores, scores)).sum())


def _sigmoid(values: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -values)), np.float64)
