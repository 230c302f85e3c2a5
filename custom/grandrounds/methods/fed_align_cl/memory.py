"""What a hospital remembers of its predictions, to know what the deployed model has forgotten.

Own and deployed model are the same right after a deployment, so they are compared around one: the own model before it
sends its weights, the deployed one after. The authors' code compares the deployed models of two successive epochs
instead. The memory is the hospital's own and never leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from grandrounds.errors import CheckpointError
from grandrounds.methods.fed_align_cl.curriculum import Flags, forgotten

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
