r"""How far the confidence of predictions can be trusted: selective classification, calibration, and operating points.

Selective classification leaves the least confident predictions to a physician:

El-Yaniv and Wiener, "On the Foundations of Noise-free Selective Classification", JMLR 11, 2010; the area under the curve
is from Geifman, Uziel and El-Yaniv, ICLR 2019.

Calibration is the expected and the maximum error of the confidence. Bins of equal width are almost empty where a network
is rarely unsure. Adaptive bins take samples in falling order of confidence until there are enough of them for the width
that the bin has reached: :math:`n > \frac14 (z / (\text{highest} - \text{lowest}))^2`, so that the bin's accuracy is
known about as precisely as its confidence (Ding et al., "Revisiting the Evaluation of Uncertainty Estimation and Its
Application to Explore Model Complexity-Uncertainty Trade-Off", CVPR Workshops 2020). FedPerl (Bdair et al., MELBA 2022)
reports its errors with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_fraction
from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.estimates import class_estimates, counts_of
from grandrounds.evaluation.score import MIN_CASES, Score

SENSITIVITY = 0.9
TRIAGE_RISKS = (0.05, 0.1)
CONFIDENCE_ROUNDING = 1e-12


def top_confidence(
    labels: NDArray[np.integer], probabilities: NDArray[np.floating]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The probability of the predicted class, and whether the prediction is right, shape ``(samples,)`` each.

    Of equal probabilities, shape ``(samples, classes)``, the lower class is the prediction. A float32 softmax may sum to a
    little more than one, so confidence is clipped to 1.
    """
    confidence = probabilities.max(axis=1).astype(np.float64).clip(max=1)
    return confidence, probabilities.argmax(axis=1) == labels


def falling_confidence(
    confidence: NDArray[np.floating], correct: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sort samples, at least one, by falling confidence; returns confidence and correctness in [0, 1].

    Samples of equal confidence have no order among themselves; each counts as right by the share of them that are. The
    result does not depend on the order of the samples.

    Example:
        >>> falling_confidence(np.array([0.5, 0.9, 0.5]), np.array([True, True, False]))
        (array([0.9, 0.5, 0.5]), array([1. , 0.5, 0.5]))
    """
    values, inverse, counts = np.unique(confidence.astype(np.float64), return_inverse=True, return_counts=True)
    share = np.bincount(inverse, weights=correct) / counts
    return np.repeat(values, counts)[::-1], np.repeat(share, counts)[::-1]


class RiskCoverage(NamedTuple):
    """Risk, the share of wrong predictions among the k most confident of N, by coverage k / N; shape ``(N,)`` each."""

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
    r"""Risk among the k most confident predictions, for every k.

    .. math:: \mathrm{risk}_k = \frac1k \sum_{i \le k} \mathbb 1[\hat y_i \ne y_i], \qquad
        \mathrm{conf}_1 \ge \dots \ge \mathrm{conf}_N

    Among samples of equal confidence the risk is the expected one, as if they were taken in random order. Arguments and
    errors are those of :func:`falling_confidence`.

    Example:
        >>> curve = risk_coverage(np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False]))
        >>> curve.risk.round(4).tolist(), round(curve.area, 4)
        ([0.0, 0.5, 0.3333, 0.5], 0.3333)
    """
    _, right = falling_confidence(confidence, correct)
    taken = np.arange(1, len(right) + 1)
    return RiskCoverage(taken / len(right), np.cumsum(1 - right) / taken)


def coverage_at_risk(curve: RiskCoverage, max_risk: float = 0.1) -> float:
    """The largest coverage whose risk is at most ``max_risk``, in [0, 1]; 0 if the risk is higher everywhere.

    The risk may be higher at some smaller coverage.

    Example:
        >>> curve = risk_coverage(np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False]))
        >>> coverage_at_risk(curve, 0.4), coverage_at_risk(curve, 0)
        (0.75, 0.25)
    """
    require_fraction(max_risk, "max_risk")
    low_enough = np.flatnonzero(curve.risk <= max_risk + CONFIDENCE_ROUNDING)
    return float(curve.coverage[low_enough[-1]]) if len(low_enough) else 0.0


class OperatingPoint(NamedTuple):
    """A class's threshold, with sensitivity, specificity and cases of the class among the images it was chosen with.

    Images whose probability reaches the threshold are called positive.
    """

    threshold: float
    sensitivity: float
    specificity: float
    cases: int


def choose_operating_point(validation: Cases, number: int, sensitivity: float = SENSITIVITY) -> OperatingPoint | None:
    """The highest threshold that finds at least this share of a class's validation images.

    Returns:
        None if there are no probabilities, or too few validation cases of the class or of the others.

    Example:
        >>> from grandrounds.evaluation.bootstrap import cases_of
        >>> scores = np.linspace(0.05, 0.95, 20)
        >>> found = choose_operating_point(cases_of(np.repeat([0, 1], 10), np.stack([1 - scores, scores], axis=1)), 1)
        >>> round(found.threshold, 3), found.sensitivity, found.specificity  # the second lowest of ten
        (0.571, 0.9, 1.0)
    """
    require_fraction(sensitivity, "sensitivity")
    behind = int(min(validation.positives()[number], validation.negatives()[number]))
    if validation.probabilities is None or behind < MIN_CASES:
        return None
    positive, scores = validation.labels == number, validation.probabilities[:, number]
    falling = np.sort(scores[positive])[::-1]
    needed = max(int(np.ceil(sensitivity * len(falling) - 1e-9)), 1)
    threshold = float(falling[needed - 1])
    called = scores >= threshold
    return OperatingPoint(
        threshold,
        float(called[positive].mean()),
        float((~called[~positive]).mean()),
        int(validation.positives()[number]),
    )


def at_threshold(test: Cases, number: int, threshold: float) -> dict[str, Score]:
    """Sensitivity, specificity, precision and F1 of a class on test images at a threshold chosen elsewhere.

    Raises:
        ValueError: if there are no probabilities, or the threshold is no fraction.
    """
    require_fraction(threshold, "threshold")
    if test.probabilities is None:
        raise ValueError("a threshold needs probabilities, and only the predicted classes are known")
    called = (test.probabilities[:, number] >= threshold).astype(np.int64)
    yes_or_no = Cases((test.labels == number).astype(np.int64), called, test.groups, None, 2)
    return class_estimates(counts_of(yes_or_no))[1]


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
    """Calibration errors, risk at full coverage, AURC, and coverage at each of ``TRIAGE_RISKS``.

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
        **{f"coverage_at_risk_{risk}": coverage_at_risk(curve, risk) for risk in TRIAGE_RISKS},
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
