"""What a hospital remembers of its predictions, to know what the deployed model has forgotten.

Own and deployed model are the same right after a deployment, so they are compared around one: the own model before it
sends its weights, the deployed one after. The authors' code compares the deployed models of two successive epochs
instead. The memory is the hospital's own and never leaves it.

The order of training images: what the averaged model has forgotten comes early.

Jiménez-Sánchez et al., 2021, section 3.4: an image that the hospital's own model had right and the deployed model gets
wrong has twice the weight of another in drawing the order (Plackett & Luce's model). An epoch leaves its surplus images
out, so forgotten ones are also seldom among those. Nothing of this leaves the hospital.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.checks import require_at_least
from grandrounds.errors import CheckpointError

Comparison = Literal["around_last_comm", "epoch_to_epoch", "every_comm"]


class Memory:
    """Which training images were forgotten in the running epoch, and before.

    Args:
        comparison: ``around_last_comm``: around the last communication of an epoch (the paper's text; two predictions of
            all images); ``epoch_to_epoch``: the deployed models at the ends of two epochs (authors' code; one);
            ``every_comm``: around each communication of the epoch, forgotten if once.
        images: how many training images the hospital has, always in the same order.

    Example:
        >>> memory = Memory("around_last_comm", images=2)
        >>> memory.before(np.array([True, True]), closes=True)
        >>> memory.after(np.array([False, True]), closes=True)
        >>> memory.forgotten().tolist()
        [True, False]
    """

    def __init__(self, comparison: Comparison, images: int) -> None:
        if comparison not in get_args(Comparison):
            raise ValueError(f"comparison must be one of {', '.join(get_args(Comparison))}, got {comparison!r}")
        self._comparison = comparison
        self._images = images
        self._own: Flags | None = None
        self._epoch = np.zeros(images, np.bool_)
        self._forgotten = np.zeros(images, np.bool_)

    def wants_before(self, closes: bool) -> bool:
        """Whether the own model has to predict before a communication; ``closes``: the last of the epoch."""
        return self._comparison == "every_comm" or (closes and self._comparison == "around_last_comm")

    def wants_after(self, closes: bool) -> bool:
        """Whether the deployed model has to predict after it."""
        return closes or self._comparison == "every_comm"

    def before(self, correct: Flags, closes: bool) -> None:
        """Take in what the own model has right before a communication; what is not wanted is not noted."""
        if self.wants_before(closes):
            self._own = self._checked(correct)

    def after(self, correct: Flags, closes: bool) -> None:
        """Take in what the deployed model has right; at the end of an epoch this settles what was forgotten in it."""
        correct = self._checked(correct)
        if not self.wants_after(closes):
            return
        if self._own is not None:
            self._epoch = self._epoch | forgotten(self._own, correct)
        self._own = correct if self._comparison == "epoch_to_epoch" else None
        if closes:
            self._forgotten, self._epoch = self._epoch, np.zeros(self._images, np.bool_)

    def forgotten(self) -> Flags:
        """What was forgotten in the last finished epoch; nothing where it was not looked at."""
        return self._forgotten.copy()

    def state_dict(self) -> dict[str, Tensor]:
        """Everything, as tensors, for the site's own store."""
        own = {} if self._own is None else {"own": torch.from_numpy(self._own.copy())}
        return {
            "epoch": torch.from_numpy(self._epoch.copy()),
            "forgotten": torch.from_numpy(self._forgotten.copy()),
            **own,
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state.

        Raises:
            CheckpointError: if it is of another number of images.
        """
        for name, flags in state.items():
            if tuple(flags.shape) != (self._images,):
                raise CheckpointError(
                    f"the curriculum's memory {name!r} is of {tuple(flags.shape)} images, but the site has {self._images}; "
                    "start a run with another run_name"
                )
        own = state.get("own")
        self._own = None if own is None else own.numpy().astype(np.bool_)
        self._epoch = state["epoch"].numpy().astype(np.bool_)
        self._forgotten = state["forgotten"].numpy().astype(np.bool_)

    def _checked(self, correct: Flags) -> Flags:
        if correct.shape != (self._images,):
            raise ValueError(f"expected a prediction for each of {self._images} images, got shape {correct.shape}")
        return correct.astype(np.bool_)


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
