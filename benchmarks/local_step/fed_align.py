"""An iteration of Fed-Align-CL's ``summed`` beside the textbook's, which treats every pair of hospitals by itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import nn

from benchmarks.fed_align_step.run import BATCH, SITES, sgd, summed, textbook
from benchmarks.local_step.case import HALF, Case, Work
from grandrounds.methods.fed_align_cl.participant import adam

RATE = 1e-5


class FedAlignCase(Case):
    """Iterations on one batch.

    Args:
        image_size: in pixels.
        steps: of a measurement.
    """

    method = "Fed-Align-CL"
    loops = ("ours", "textbook", HALF)
    comparisons = (("ours", "textbook"),)
    checked_steps = (2,)

    def __init__(self, image_size: int, *, steps: int) -> None:
        self.title = f"resnet22, {image_size} px, batches of {BATCH}, {len(SITES)} hospitals"
        self.steps = steps
        self._size = image_size

    def forward(self) -> Work:
        """One forward pass of a batch."""
        network, _ = summed(torch.float32, self._size, sgd)
        return partial(network, torch.zeros(BATCH, 1, self._size, self._size))

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """A fresh network, and what trains it."""
        if loop == "textbook":
            network, iterate = textbook(dtype, self._size, sgd if dtype == torch.float64 else _plain_adam)
        else:
            network, iterate = summed(dtype, self._size, sgd if dtype == torch.float64 else adam(RATE))
        precision = torch.autocast("cpu", torch.bfloat16) if loop == HALF else nullcontext()
        return network, lambda: _repeat(iterate, steps, precision)


def _plain_adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=RATE)


def _repeat(iterate: Callable[[], object], steps: int, precision: nullcontext[None] | torch.autocast) -> None:
    with precision:
        for _ in range(steps):
            iterate()
