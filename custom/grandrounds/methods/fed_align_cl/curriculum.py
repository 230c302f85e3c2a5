"""The memory-aware curriculum: images that the averaged model has forgotten come early.

Jiménez-Sánchez et al., 2021, section 3.4: an image that the site's local model classified correctly and the deployed model
does not has twice the weight of another in drawing the order (Plackett & Luce's model). Local and deployed model are the
same right after a deployment, so they are compared around one: the local model before it sends its weights, the deployed
one after. The authors' code compares the deployed models of two successive epochs instead. Nothing of this leaves the site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.errors import CheckpointError
from grandrounds.methods.fed_align_cl.options import Comparison, CurriculumOptions

Flags = NDArray[np.bool_]
Values = NDArray[np.float64]
Indices = NDArray[np.int64]


def correct_predictions(network: Callable[[Tensor], Tensor], batches: Iterable[tuple[Tensor, Tensor]]) -> Flags:
    """Predict and compare with the labels.

    Args:
        network: images to logits, without gradients.
        batches: images and labels; predictions do not depend on the batch size.

    Returns:
        Shape ``(images,)``, in the order of the batches; equal logits count for the first class.
    """
    correct = [(network(images).argmax(dim=1) == labels).cpu().numpy() for images, labels in batches]
    return np.concatenate(correct) if correct else np.zeros(0, np.bool_)


class Memory:
    """Which training images were forgotten in the running epoch, and before.

    Args:
        comparison: ``around_last_comm``: around the last communication of an epoch (the paper's text; two predictions of
            all images); ``epoch_to_epoch``: the deployed models at the ends of two epochs (authors' code; one);
            ``every_comm``: around each communication of the epoch, forgotten if once.
        images: number of the site's training images, always in the same order.

    Example:
        >>> memory = Memory("around_last_comm", images=2)
        >>> memory.before(np.array([True, True]), ends_epoch=True)
        >>> memory.after(np.array([False, True]), ends_epoch=True)
        >>> memory.forgotten().tolist()
        [True, False]
    """

    def __init__(self, comparison: Comparison, images: int) -> None:
        self._comparison = comparison
        self._images = images
        self._own: Flags | None = None
        self._epoch = np.zeros(images, np.bool_)
        self._forgotten = np.zeros(images, np.bool_)

    def wants_before(self, ends_epoch: bool) -> bool:
        """Whether the local model has to predict before a communication; ``ends_epoch``: the last of the epoch."""
        return self._comparison == "every_comm" or (ends_epoch and self._comparison == "around_last_comm")

    def wants_after(self, ends_epoch: bool) -> bool:
        """Whether the deployed model has to predict after it."""
        return ends_epoch or self._comparison == "every_comm"

    def before(self, correct: Flags, ends_epoch: bool) -> None:
        """Note which predictions of the local model are correct before a communication, if it is wanted."""
        if self.wants_before(ends_epoch):
            self._own = correct

    def after(self, correct: Flags, ends_epoch: bool) -> None:
        """Note which predictions of the deployed model are correct; at the end of an epoch find what was forgotten in it."""
        if not self.wants_after(ends_epoch):
            return
        if self._own is not None:
            self._epoch = self._epoch | forgotten(self._own, correct)
        self._own = correct if self._comparison == "epoch_to_epoch" else None
        if ends_epoch:
            self._forgotten, self._epoch = self._epoch, np.zeros(self._images, np.bool_)

    def forgotten(self) -> Flags:
        """What was forgotten in the last finished epoch; nothing where it was not examined."""
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
        """Continue from a state.

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


def forgotten(local_correct: Flags, global_correct: Flags) -> Flags:
    """Which images, shape ``(images,)``, the local model classified correctly and the deployed model does not.

    Example:
        >>> forgotten(np.array([True, True, False, False]), np.array([False, True, False, True])).tolist()
        [True, False, False, False]
    """
    return local_correct & ~global_correct


def curriculum_scores(forgotten_images: Flags, factor: float = 2.0) -> Values:
    r"""The scores (Eq. 4): :math:`\rho_k = 2`, the factor, for what was forgotten, else 1; a factor of 1 gives equal scores.

    Example:
        >>> curriculum_scores(np.array([True, False]))
        array([2., 1.])
    """
    return np.where(forgotten_images, factor, 1.0)


def curriculum_probabilities(scores: Values) -> Values:
    r"""The probabilities of coming first: :math:`\gamma_k = \rho_k / \sum_l \rho_l`.

    Example:
        >>> curriculum_probabilities(np.array([2.0, 1.0, 1.0, 1.0]))
        array([0.4, 0.2, 0.2, 0.2])
        >>> curriculum_probabilities(np.array([2.0, 2.0]))  # all forgotten is nothing forgotten
        array([0.5, 0.5])
    """
    return scores / scores.sum()


def curriculum_order(scores: Values, generator: np.random.Generator) -> Indices:
    r"""A permutation in which each next image is drawn with probability proportional to its score.

    Sorting :math:`\log \rho_k + G_k` with Gumbel noise draws it at once (Yellott, Journal of Mathematical Psychology
    1977).
    """
    return np.argsort(-(np.log(scores) + generator.gumbel(size=len(scores))), kind="stable").astype(np.int64)


def order_with_replacement(scores: Values, generator: np.random.Generator) -> Indices:
    """The authors' code: as many draws as images, with replacement: some images come several times, others never.

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
