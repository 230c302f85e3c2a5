r"""The order of training images: what the averaged model has forgotten comes early.

Jiménez-Sánchez et al., 2021, section 3.4: an image that the hospital's own model had right and the deployed model gets
wrong has twice the weight of another in drawing the order (Plackett & Luce's model). An epoch leaves its surplus images
out, so forgotten ones are also seldom among those. Nothing of this leaves the hospital.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least

FORGOTTEN = 2.0

Flags = NDArray[np.bool_]
Values = NDArray[np.float64]
Indices = NDArray[np.int64]


def forgotten(local_correct: Flags, global_correct: Flags) -> Flags:
    """Which images the own model had right and the deployed model has wrong.

    Args:
        local_correct: shape ``(images,)``, of the model before it was deployed over.
        global_correct: the same of the deployed model.

    Raises:
        ValueError: if the shapes differ or are not one-dimensional.

    Example:
        >>> forgotten(np.array([True, True, False, False]), np.array([False, True, False, True])).tolist()
        [True, False, False, False]
    """
    if local_correct.ndim != 1 or local_correct.shape != global_correct.shape:
        raise ValueError(
            f"both must have shape (images,), got {tuple(local_correct.shape)} and {tuple(global_correct.shape)}"
        )
    return local_correct & ~global_correct


def curriculum_scores(forgotten_images: Flags, factor: float = FORGOTTEN) -> Values:
    r"""The scores (Eq. 4): :math:`\rho_k = 2` for what was forgotten, else 1.

    Args:
        forgotten_images: shape ``(images,)``.
        factor: the score of what was forgotten, above zero; 1 is no curriculum.

    Raises:
        ValueError: if ``factor`` is not positive and finite.

    Example:
        >>> curriculum_scores(np.array([True, False]))
        array([2., 1.])
    """
    if not 0 < factor < np.inf:
        raise ValueError(f"factor must be a positive number, got {factor}")
    return np.where(forgotten_images, factor, 1.0)


def curriculum_probabilities(scores: Values) -> Values:
    r"""The probabilities of coming first: :math:`\gamma_k = \rho_k / \sum_l \rho_l`.

    Raises:
        ValueError: if a score is not positive and finite, or there is none.

    Example:
        >>> curriculum_probabilities(np.array([2.0, 1.0, 1.0, 1.0]))
        array([0.4, 0.2, 0.2, 0.2])
        >>> curriculum_probabilities(np.array([2.0, 2.0]))  # all forgotten is nothing forgotten
        array([0.5, 0.5])
    """
    _require_scores(scores)
    probabilities: Values = scores / scores.sum()
    return probabilities


def curriculum_order(scores: Values, generator: np.random.Generator) -> Indices:
    r"""A permutation in which each next image is drawn with probability proportional to its score.

    Sorting :math:`\log \rho_k + G_k` with Gumbel noise draws it at once (Yellott, Journal of Mathematical Psychology
    1977).

    Args:
        scores: shape ``(images,)``, positive.
        generator: where it is drawn from.

    Returns:
        A permutation of ``range(images)``.

    Raises:
        ValueError: if a score is not positive and finite, or there is none.
    """
    _require_scores(scores)
    return np.argsort(-(np.log(scores) + generator.gumbel(size=len(scores))), kind="stable").astype(np.int64)


def order_with_replacement(scores: Values, generator: np.random.Generator) -> Indices:
    """The authors' code: as many draws as images, of which some come several times and others never.

    Args:
        scores: shape ``(images,)``, positive.
        generator: where it is drawn from.

    Returns:
        Indices, shape ``(images,)``; of four images with equal scores about two thirds are among them.

    Raises:
        ValueError: if a score is not positive and finite, or there is none.
    """
    probabilities = curriculum_probabilities(scores)
    return generator.choice(len(scores), len(scores), p=probabilities).astype(np.int64)


def epoch_batches(order: Indices, batch_size: int, iterations: int) -> Indices:
    """The batches of an epoch: the first images of the order, the surplus left out.

    Args:
        order: of the hospital's training images.
        batch_size: images in a batch.
        iterations: batches.

    Returns:
        Shape ``(iterations, batch_size)``.

    Raises:
        ValueError: if the order is too short, or an argument is below one.

    Example:
        >>> epoch_batches(np.array([3, 0, 2, 1, 4]), batch_size=2, iterations=2)
        array([[3, 0],
               [2, 1]])
    """
    require_at_least(batch_size, 1, "batch_size")
    require_at_least(iterations, 1, "iterations")
    if len(order) < batch_size * iterations:
        raise ValueError(f"{len(order)} images make no {iterations} batches of {batch_size}")
    return order[: batch_size * iterations].reshape(iterations, batch_size)


def _require_scores(scores: Values) -> None:
    if scores.ndim != 1 or not len(scores) or not bool((np.isfinite(scores) & (scores > 0)).all()):
        raise ValueError("scores must be positive numbers, at least one, of shape (images,)")
