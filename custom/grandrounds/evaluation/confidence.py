"""A model's confidence: the order in which it would give up its predictions, in which equals are interchangeable."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def top_confidence(
    labels: NDArray[np.integer], probabilities: NDArray[np.floating]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The probability of the predicted class, and whether the prediction is right.

    Args:
        labels: true classes, shape ``(samples,)``, integers in [0, classes).
        probabilities: predictions (not logits), shape ``(samples, classes)``. Of equal probabilities the lower class is
            the prediction.

    Returns:
        Confidence in [0, 1] and correctness, shape ``(samples,)`` each.

    Raises:
        ValueError: if the shapes do not fit together.
    """
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
        raise ValueError(
            "expected labels (samples,) and probabilities (samples, classes), "
            f"got {labels.shape} and {probabilities.shape}"
        )
    return probabilities.max(axis=1).astype(np.float64), probabilities.argmax(axis=1) == labels


def falling_confidence(
    confidence: NDArray[np.floating], correct: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sort samples by confidence, the surest first.

    Samples of equal confidence have no order among themselves; each counts as right by the share of them that are. What
    follows then depends on the samples alone and not on the order in which they came.

    Args:
        confidence: in [0, 1], shape ``(samples,)``.
        correct: whether each prediction is right, bool, shape ``(samples,)``.

    Returns:
        Confidence in falling order, and correctness in [0, 1] in the same order.

    Raises:
        ValueError: if there is no sample, the shapes differ, ``correct`` is not bool or a confidence is outside [0, 1].

    Example:
        >>> falling_confidence(np.array([0.5, 0.9, 0.5]), np.array([True, True, False]))
        (array([0.9, 0.5, 0.5]), array([1. , 0.5, 0.5]))
    """
    if confidence.ndim != 1 or confidence.shape != correct.shape:
        raise ValueError(f"confidence and correct must have one length, got {confidence.shape} and {correct.shape}")
    if not len(confidence):
        raise ValueError("there are no samples")
    if correct.dtype != np.bool_:
        raise ValueError(f"correct must be bool, got {correct.dtype}")
    wrong = np.flatnonzero(~((confidence >= 0) & (confidence <= 1)))
    if len(wrong):
        raise ValueError(f"entry {wrong[0]} of confidence must be between 0 and 1, got {confidence[wrong[0]]}")
    values, inverse, counts = np.unique(confidence.astype(np.float64), return_inverse=True, return_counts=True)
    share = np.bincount(inverse, weights=correct) / counts
    return np.repeat(values, counts)[::-1], np.repeat(share, counts)[::-1]
