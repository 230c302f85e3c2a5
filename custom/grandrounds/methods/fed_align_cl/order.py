"""The order of a curriculum: which images an epoch shows first."""

from __future__ import annotations

import numpy as np

from grandrounds.methods.fed_align_cl.curriculum import (
    Flags,
    Indices,
    Values,
    curriculum_probabilities,
    curriculum_scores,
)
from grandrounds.methods.fed_align_cl.options import CurriculumOptions


def curriculum_order(scores: Values, generator: np.random.Generator) -> Indices:
    r"""A permutation in which each next image is drawn with probability proportional to its score.

    Sorting :math:`\log \rho_k + G_k` with Gumbel noise draws it at once (Yellott, Journal of Mathematical Psychology
    1977).
    """
    return np.argsort(-(np.log(scores) + generator.gumbel(size=len(scores))), kind="stable").astype(np.int64)


def order_with_replacement(scores: Values, generator: np.random.Generator) -> Indices:
    """The authors' code: as many draws as images, of which some come several times and others never.

    Of four images with equal scores about two thirds are among them.
    """
    probabilities = curriculum_probabilities(scores)
    return generator.choice(len(scores), len(scores), p=probabilities).astype(np.int64)


def draw_order(forgotten_images: Flags, options: CurriculumOptions, generator: np.random.Generator) -> Indices:
    """The order of an epoch's images; nothing forgotten gives a uniform one."""
    scores = curriculum_scores(forgotten_images, options.factor)
    return (order_with_replacement if options.replacement else curriculum_order)(scores, generator)


def moved_forward(order: Indices, uniform: Indices, forgotten_images: Flags) -> Flags:
    """Which forgotten images come earlier than in the order of the same random numbers in which nothing is forgotten.

    An image that an order does not have (drawn with replacement) comes last. Shape ``(images,)``.

    Example:
        >>> order, uniform = np.array([2, 0, 1]), np.array([0, 2, 1])
        >>> moved_forward(order, uniform, np.array([False, True, True])).tolist()
        [False, False, True]
    """
    return forgotten_images & (_first_places(order) < _first_places(uniform))


def _first_places(order: Indices) -> Indices:
    places = np.full(len(order), len(order), np.int64)
    images, first = np.unique(order, return_index=True)
    places[images] = first
    return places


def epoch_batches(order: Indices, batch_size: int, iterations: int) -> Indices:
    """The batches of an epoch: the first images of the order, which are enough; the surplus is left out.

    Returns:
        Shape ``(iterations, batch_size)``.

    Example:
        >>> epoch_batches(np.array([3, 0, 2, 1, 4]), batch_size=2, iterations=2)
        array([[3, 0],
               [2, 1]])
    """
    return order[: batch_size * iterations].reshape(iterations, batch_size)
