r"""One offset for each class, added to a model's logits at a place: from a few labels there, or from its class shares.

From labels: :math:`b = \arg\max_b \sum_i \log \operatorname{softmax}(z_i + b)_{y_i} - \tfrac{\lambda}{2} |b|^2`. The penalty
keeps the offset of a class without a label finite; the offsets add up to zero.

From shares, where images of a class look alike at both places and only its share differs (Saerens, Latinne and
Decaestecker, "Adjusting the outputs of a classifier to new a priori probabilities", Neural Computation 14, 2002):
:math:`b_c = \log(\pi'_c / \pi_c)`. Shares that are not known are found from the predictions alone, by expectation and
maximisation. The model must be calibrated for :math:`\pi` before (Alexandari, Kundaje and Shrikumar, "Maximum likelihood
with bias-corrected calibration is hard-to-beat at label shift adaptation", ICML 2020).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

OFFSET_PENALTY = 1.0
"""Lambda: as if offsets had a normal distribution with mean 0 and this inverse variance."""
LEAST_SHARE = 1e-7
"""Probabilities and shares are kept this far from 0."""
EM_STEPS = 10_000
NEWTON_STEPS = 100

Array = NDArray[np.float64]


def with_offsets(probabilities: Array, offsets: Array) -> Array:
    """The probabilities after offsets ``(classes,)`` were added to the logits, shape ``(n, classes)``.

    Example:
        >>> with_offsets(np.array([[0.5, 0.5]]), np.log([3.0, 1.0]))
        array([[0.75, 0.25]])
    """
    shifted = np.log(probabilities.clip(LEAST_SHARE)) + offsets
    odds = np.exp(shifted - shifted.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True), np.float64)


def fit_offsets(probabilities: Array, labels: NDArray[np.int64], penalty: float = OFFSET_PENALTY) -> Array:
    """The offsets of the largest penalised likelihood, by Newton's method with halved steps.

    Args:
        probabilities: of the model for labelled images, shape ``(n, classes)``.
        labels: their classes, shape ``(n,)``.
        penalty: above 0.

    Returns:
        Shape ``(classes,)``.

    Example:
        >>> fit_offsets(np.full((4, 2), 0.5), np.zeros(4, np.int64), penalty=2 / np.log(3)).round(6)  # half of log(3)
        array([ 0.549306, -0.549306])
    """
    classes = probabilities.shape[1]
    counts = np.bincount(labels, minlength=classes)
    found, identity = np.zeros(classes), penalty * np.eye(classes)

    def objective(offsets: Array) -> float:
        chosen = with_offsets(probabilities, offsets)[np.arange(len(labels)), labels]
        return float(np.log(chosen.clip(1e-300)).sum() - penalty / 2 * (offsets**2).sum())

    for _ in range(NEWTON_STEPS):
        expected = with_offsets(probabilities, found)
        gradient = counts - expected.sum(axis=0) - penalty * found
        step = np.linalg.solve(np.diag(expected.sum(axis=0)) - expected.T @ expected + identity, gradient)
        while objective(found + step) < objective(found) and abs(step).max() > 1e-9:
            step = step / 2
        found = found + step
        if abs(step).max() < 1e-9:
            break
    return np.asarray(found, np.float64)


def shares_of(probabilities: Array, home: Array) -> Array:
    """The class shares at a place that make the predictions there most likely.

    Args:
        probabilities: calibrated for the shares ``home``, of images of the place, shape ``(n, classes)``.
        home: shape ``(classes,)``, each above 0.

    Returns:
        Shape ``(classes,)``; they add up to 1.

    Example:
        >>> shares_of(np.array([[0.8, 0.2], [0.8, 0.2], [0.2, 0.8]]), np.array([0.5, 0.5])).round(4)  # 7/9 and 2/9
        array([0.7778, 0.2222])
    """
    found = np.array(home, np.float64)
    for _ in range(EM_STEPS):
        now = with_offsets(probabilities, share_offsets(home, found)).mean(axis=0)
        if abs(now - found).max() < 1e-10:
            break
        found = now
    return found


def share_offsets(home: Array, place: Array) -> Array:
    """The offsets that take a model that is calibrated for the shares ``home`` to those of a place.

    Example:
        >>> share_offsets(np.array([0.5, 0.5]), np.array([0.75, 0.25])).round(4)
        array([ 0.4055, -0.6931])
    """
    return np.asarray(np.log(place.clip(LEAST_SHARE)) - np.log(home.clip(LEAST_SHARE)), np.float64)
