"""Learning from the others in MDH-FL beside the textbook's, RHFL's, and the least that a step can cost."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.local_step.case import HALF, Case, Work, in_default_layout
from benchmarks.local_step.released import rhfl_pass
from benchmarks.mdhfl_step.run import CLASSES, SIDE, SITES, context_of, others_of, target_of
from benchmarks.mdhfl_step.textbook import as_tensor, textbook_pass, textbook_rows
from grandrounds.methods.mutual.options import AlignmentOptions
from grandrounds.methods.mutual.public import predict_public
from grandrounds.methods.mutual.training import AlignmentStep, align
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import numpy_generator

BATCH, RATE = 16, 1e-3
AS_RELEASED, LEAST = "ours, as released", "forward, backward, Adam"


class MDHFLCase(Case):
    """Passes over a few public images at one site.

    Args:
        backbone: of the site.
        steps: of a measurement.
    """

    method = "MDH-FL"
    loops = ("ours", "textbook", LEAST, AS_RELEASED, "released", HALF)
    comparisons = (("ours", "textbook"), ("ours", LEAST), (AS_RELEASED, "released"))
    checked_steps = (1,)

    def __init__(self, backbone: str, *, steps: int) -> None:
        self.title = f"{backbone}, {SIDE} px, batches of {BATCH}, {len(SITES)} sites"
        self.steps = steps
        self._start = build_model(ModelSpec(backbone, CLASSES), seed=1)
        count = BATCH * max(steps, *self.checked_steps)
        self._images = numpy_generator("public").integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)

    def forward(self) -> Work:
        """One forward pass of a batch."""
        return partial(self._start, torch.zeros(BATCH, 3, SIDE, SIDE))

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """A fresh network, and what trains it."""
        network = in_default_layout(self._start).to(dtype).train()
        others = others_of(len(self._images), dtype)
        batches = list(np.arange(BATCH * steps, dtype=np.int64).reshape(-1, BATCH))
        tensors = [as_tensor(self._images[batch], network) for batch in batches]
        if loop == "released":
            rows = [[theirs[batch] for batch in batches] for theirs in others]
            return network, lambda: rhfl_pass(network, tensors, rows, RATE)
        network = network.to(memory_format=torch.channels_last)
        if loop == "textbook":
            return network, lambda: textbook_pass(network, self._images, others, batches)
        target = target_of(others)
        if loop == LEAST:
            return network, lambda: _least(network, tensors, [target[batch] for batch in batches])
        options = AlignmentOptions(
            alignment_rate=RATE, alignment_optimizer="fresh_per_batch" if loop == AS_RELEASED else "per_round"
        )
        context = context_of("bfloat16" if loop == HALF else "float32")
        step = AlignmentStep(network, options)
        return network, lambda: align(network, step, self._images, target, batches, options, 0, context)


class RowsCase(Case):
    """Predictions on public images, as a site publishes them; nothing is trained, and the difference is that of the rows.

    Args:
        backbone: of the site.
        batches: of the textbook's loop, which takes those of the alignment.
    """

    method = "MDH-FL"
    loops = ("ours", "textbook")
    comparisons = (("ours", "textbook"),)
    checked_steps = (1,)

    def __init__(self, backbone: str, *, batches: int) -> None:
        self.title = f"rows, {backbone}, {SIDE} px, {BATCH * batches} images"
        self.steps = batches
        self._start = build_model(ModelSpec(backbone, CLASSES), seed=1)
        self._images = numpy_generator("public").integers(0, 256, (BATCH * batches, SIDE, SIDE, 3), dtype=np.uint8)
        self._start(as_tensor(self._images[:BATCH], self._start))  # running statistics that are not those of the start

    def forward(self) -> Work:
        """One forward pass of a batch."""
        return partial(self._start, torch.zeros(BATCH, 3, SIDE, SIDE))

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Callable[[], Tensor]]:
        """The network, and what predicts so many batches of images."""
        network = copy.deepcopy(self._start).to(dtype)
        images = self._images[: BATCH * steps]
        if loop == "textbook":
            return network, lambda: textbook_rows(network, images, BATCH)
        return network, lambda: predict_public(network, images, np.arange(len(images)), context_of())

    def difference(self, ours: str, other: str) -> float:
        """Norm of the difference of the rows in double precision, relative to that of the rows."""
        rows = [self.round(loop, torch.float64, self.steps)[1]() for loop in (ours, other)]
        return float((rows[0] - rows[1]).norm() / rows[1].norm())


def _least(network: nn.Module, batches: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    for images, rows in zip(batches, wanted, strict=True):
        optimizer.zero_grad()
        F.cross_entropy(network(images), rows).backward()
        optimizer.step()
