r"""Calibration: expected and maximum error of the confidence, in adaptive bins.

Bins of equal width are almost empty where a network is rarely unsure. Adaptive bins take samples in falling order of
confidence until there are enough of them for the width that the bin has reached:
:math:`n > \frac14 (z / (\text{highest} - \text{lowest}))^2`, so that the bin's accuracy is known about as precisely as
its confidence (Ding et al., "Revisiting the Evaluation of Uncertainty Estimation and Its Application to Explore Model
Complexity-Uncertainty Trade-Off", CVPR Workshops 2020). FedPerl (Bdair et al., MELBA 2022) reports its errors with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.clinical.selective import (
    coverage_at_risk,
    falling_confidence,
    risk_coverage,
    top_confidence,
)

Z_90 = 1.645
MIN_LEFT = 40
MIN_GAP = 0.05


class ReliabilityPoint(NamedTuple):
    """One bin: mean confidence and share of right predictions, in [0, 1], and the number of samples."""

    confidence: float
    accuracy: float
    n: int

    @property
    def gap(self) -> float:
        """Confidence less accuracy: positive where the model is overconfident."""
        return self.confidence - self.accuracy


def reliability_points(
    confidence: NDArray[np.floating],
    correct: NDArray[np.bool_],
    z: float = Z_90,
    min_remaining: int = MIN_LEFT,
    min_gap: float = MIN_GAP,
) -> list[ReliabilityPoint]:
    """Divide samples into adaptive bins, by falling confidence.

    Samples of equal confidence that fall into two bins are divided by their share of right predictions, so the order of the
    samples does not matter.

    Args:
        confidence: in [0, 1], shape ``(samples,)``.
        correct: whether each prediction is right, bool, shape ``(samples,)``.
        z: quantile of the normal distribution, at least 0; the larger, the fewer bins.
        min_remaining: a bin is opened only while more samples than this are left,
        min_gap: and while the last bin's lowest confidence is this far above the lowest of all.

    Example:
        >>> confidence, correct = np.array([0.95, 0.90, 0.55, 0.50]), np.array([True, True, True, False])
        >>> [point.n for point in reliability_points(confidence, correct, z=0.1, min_remaining=0, min_gap=0)]
        [2, 2]
    """
    falling, right = falling_confidence(confidence, correct)
    sizes = _bin_sizes(falling.tolist(), z, min_remaining, min_gap)
    cuts = np.cumsum(sizes)[:-1]
    return [
        ReliabilityPoint(float(bin_confidence.mean()), float(hits.mean()), len(hits))
        for bin_confidence, hits in zip(np.split(falling, cuts), np.split(right, cuts), strict=True)
    ]


def calibration_errors(points: Sequence[ReliabilityPoint]) -> tuple[float, float]:
    r"""Expected and maximum calibration error over all bins, both in [0, 1].

    .. math:: \mathrm{ECE} = \sum_v \frac{n_v}{N} |\mathrm{acc}_v - \mathrm{conf}_v|, \qquad
        \mathrm{MCE} = \max_v |\mathrm{acc}_v - \mathrm{conf}_v|

    with :math:`N` the number of all samples. (FedPerl's text says "bin size".)

    Example:
        >>> calibration_errors([ReliabilityPoint(0.75, 0.75, 4)])  # accuracy equals confidence
        (0.0, 0.0)
    """
    total = sum(point.n for point in points)
    ece = math.fsum(point.n * abs(point.gap) for point in points) / total
    return ece, max(abs(point.gap) for point in points)


def confidence_metrics(labels: NDArray[np.integer], probabilities: NDArray[np.floating]) -> dict[str, float]:
    """Calibration errors, risk at full coverage, AURC, and coverage at a risk of 0.1.

    Labels have shape ``(samples,)``, probabilities (not logits) ``(samples, classes)``; there must be a sample.
    """
    confidence, correct = top_confidence(labels, probabilities)
    ece, mce = calibration_errors(reliability_points(confidence, correct))
    curve = risk_coverage(confidence, correct)
    return {
        "ece": ece,
        "mce": mce,
        "risk": curve.full_coverage_risk,
        "aurc": curve.area,
        "coverage_at_risk_0.1": coverage_at_risk(curve, 0.1),
    }


def _bin_sizes(falling: Sequence[float], z: float, min_remaining: int, min_gap: float) -> list[int]:
    lowest, highest = falling[-1], falling[0]
    sizes, target = [0], math.inf
    for position, value in enumerate(falling):
        left = len(falling) - position
        if sizes[-1] > target and left > min_remaining and falling[position - 1] - lowest > min_gap:
            sizes.append(0)
            highest = value
        sizes[-1] += 1
        ratio = z / (highest - value) if highest > value else math.inf  # a bin of one confidence never has enough
        target = ratio * ratio / 4
    return _fill_last(sizes, target)


def _fill_last(sizes: Sequence[int], target: float) -> list[int]:
    """Let the earlier bins give samples to a last bin that has too few.

    All of them give the same number, as in the authors' code, but none its last sample. A last bin of one confidence
    would want infinitely many and gets none.
    """
    *earlier, last = sizes
    need = target - last
    if need <= 0 or math.isinf(need):
        return list(sizes)
    given = int(need * last / sum(sizes))
    kept = [max(size - given, 1) for size in earlier]
    return [*kept, sum(sizes) - sum(kept)]
