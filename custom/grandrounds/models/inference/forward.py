"""The one way of a network without gradients: frozen layers, teachers, peers, scores and predictions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.batches import eval_batches
from grandrounds.models.inference.forms import EXACT, Compute, form_named
from grandrounds.protocol.tensors import at_least_single

BATCH = 256
PIECE = 64
"""Feature maps of this many images stay in a CPU's cache: EfficientNets are 1.4 to 1.8 times faster than with 256."""


class Forward:
    """A network in evaluation mode, without gradients; its mode is restored after each call.

    On a CPU a number of images that pieces of 64 divide is computed in such pieces: with another last piece the last bits
    would be others.

    Args:
        network: inputs ``(batch, ...)`` to outputs ``(batch, ...)``, each of one image alone.
        form: one of ``FORMS``, or ``auto``. Of a form other than ``exact`` the weights are those of the first call.
        precision: makes the context in which it is computed, such as autocast.
    """

    def __init__(
        self,
        network: nn.Module,
        form: str = EXACT,
        precision: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.network = network
        self._form, self._precision = form_named(form), precision
        self._compute: Compute | None = None

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        """The network's outputs, in single precision at least."""
        training = self.network.training
        if training:
            self.network.eval()
        try:
            with self._precision():
                compute = self._compute = self._compute or self._form.prepared(self.network, inputs)
                if inputs.device.type != "cpu" or len(inputs) <= PIECE or len(inputs) % PIECE:
                    return at_least_single(compute(inputs))
                return at_least_single(torch.cat([compute(piece) for piece in torch.split(inputs, PIECE)]))
        finally:
            if training:
                self.network.train()

    def logits(self, inputs: Callable[..., Tensor], rows: np.ndarray, test_view: str | None = None) -> Tensor:
        """The logits of images, or their means over the images and a fixed view of them.

        Args:
            inputs: what the network takes for some of the rows, on its device; with a second argument of that fixed view.
            rows: of the images, at least one.
            test_view: the fixed view, see ``problem.test_view``; None for the images alone.

        Returns:
            Shape ``(rows, classes)``, float32, on the network's device.
        """
        views = ((),) if test_view is None else ((), (test_view,))
        with self._precision():
            parts = [
                torch.stack([self(inputs(batch, *view)).float() for view in views]).mean(dim=0)
                for batch in eval_batches(rows, BATCH)
            ]
        return torch.cat(parts)
