"""Operating points: a threshold is chosen on validation images and scored on test images, which had no part in it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_fraction
from grandrounds.evaluation.bootstrap import MIN_CASES, RESAMPLES, Estimate, class_estimates, resampled_confusions
from grandrounds.evaluation.cases import Cases

SENSITIVITY = 0.9


class OperatingPoint(NamedTuple):
    """A class's threshold and its scores on the images it was chosen with.

    Attributes:
        threshold: an image is called positive where the class's probability reaches it.
        sensitivity: on validation images, in [0, 1].
        specificity: likewise.
        cases: validation cases of the class.
    """

    threshold: float
    sensitivity: float
    specificity: float
    cases: int


def choose_operating_point(validation: Cases, number: int, sensitivity: float = SENSITIVITY) -> OperatingPoint | None:
    """The highest threshold that finds at least this share of a class's validation images.

    Args:
        validation: cases with probabilities.
        number: of the class.
        sensitivity: minimum share to be found, in [0, 1].

    Returns:
        None if there are no probabilities, or too few validation cases of the class or of the others.

    Raises:
        ValueError: if the sensitivity is no fraction.

    Example:
        >>> from grandrounds.evaluation.cases import cases_of
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


def at_threshold(
    test: Cases, number: int, threshold: float, generator: np.random.Generator, resamples: int = RESAMPLES
) -> dict[str, Estimate]:
    """Sensitivity, specificity, precision and F1 of a class on test images at a threshold chosen elsewhere.

    Raises:
        ValueError: if there are no probabilities, or the threshold is no fraction.
    """
    require_fraction(threshold, "threshold")
    if test.probabilities is None:
        raise ValueError("a threshold needs probabilities, and only the predicted classes are known")
    yes_or_no = _binary(test, number, test.probabilities[:, number] >= threshold)
    found = class_estimates(
        yes_or_no.confusion(),
        resampled_confusions(yes_or_no, generator, resamples),
        yes_or_no.positives(),
        yes_or_no.negatives(),
    )
    return found[1]


def _binary(cases: Cases, number: int, called: NDArray[np.bool_]) -> Cases:
    labels = (cases.labels == number).astype(np.int64)
    return Cases(labels, called.astype(np.int64), cases.groups, None, 2)
