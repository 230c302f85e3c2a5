"""What if the model may decline? Risk against coverage when the least sure predictions are left to a physician.

El-Yaniv and Wiener, "On the Foundations of Noise-free Selective Classification", JMLR 11, 2010; the area under the curve
is from Geifman, Uziel and El-Yaniv, ICLR 2019.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_fraction
from grandrounds.evaluation.confidence import falling_confidence

ROUNDING = 1e-12


class RiskCoverage(NamedTuple):
    """Risk as a function of coverage; entry k - 1 is for the k surest of N samples.

    Attributes:
        coverage: k / N, shape ``(N,)``, rising to 1.
        risk: share of wrong predictions among the k, in [0, 1], shape ``(N,)``.
    """

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]

    @property
    def full_coverage_risk(self) -> float:
        """Risk when nothing is declined: one less the accuracy."""
        return float(self.risk[-1])

    @property
    def area(self) -> float:
        r"""Area under the curve, AURC: :math:`\frac1N \sum_k \mathrm{risk}_k`; lower is better."""
        return float(self.risk.mean())


def risk_coverage(confidence: NDArray[np.floating], correct: NDArray[np.bool_]) -> RiskCoverage:
    r"""Risk among the k surest predictions, for every k.

    .. math:: \mathrm{risk}_k = \frac1k \sum_{i \le k} \mathbb 1[\hat y_i \ne y_i], \qquad
        \mathrm{conf}_1 \ge \dots \ge \mathrm{conf}_N

    Among equally sure samples the risk is the expected one, as if they were taken in random order.

    Args:
        confidence: in [0, 1], shape ``(N,)``.
        correct: whether each prediction is right, bool, shape ``(N,)``.

    Raises:
        ValueError: if there is no sample, the shapes differ, a confidence is outside [0, 1] or ``correct`` is not bool.

    Example:
        >>> curve = risk_coverage(np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False]))
        >>> curve.risk.round(4).tolist(), round(curve.area, 4)
        ([0.0, 0.5, 0.3333, 0.5], 0.3333)
    """
    _, right = falling_confidence(confidence, correct)
    taken = np.arange(1, len(right) + 1)
    return RiskCoverage(taken / len(right), np.cumsum(1 - right) / taken)


def coverage_at_risk(curve: RiskCoverage, most: float = 0.1) -> float:
    """The largest coverage whose risk is at most ``most``; 0 if the risk is higher everywhere.

    The risk may be higher at some smaller coverage.

    Raises:
        ValueError: if ``most`` is not in [0, 1].

    Example:
        >>> curve = risk_coverage(np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False]))
        >>> coverage_at_risk(curve, 0.4), coverage_at_risk(curve, 0)
        (0.75, 0.25)
    """
    require_fraction(most, "most")
    low_enough = np.flatnonzero(curve.risk <= most + ROUNDING)
    return float(curve.coverage[low_enough[-1]]) if len(low_enough) else 0.0
