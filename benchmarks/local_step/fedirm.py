"""Local steps of FedIRM, with and without labels, beside the released loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import nn

from benchmarks.local_step.case import HALF, Case, Work, in_default_layout, in_precision, phantom_context, precision_of
from benchmarks.local_step.released import Indices, fedirm_labelled_step, fedirm_step
from grandrounds.data.batches import index_batches
from grandrounds.data.datasets.phantom import PHANTOM_CLASSES
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import new_optimizer
from grandrounds.methods.fedirm.options import LabelledOptions, LocalOptions, RelationOptions, UnlabelledOptions
from grandrounds.methods.fedirm.relation import Relation
from grandrounds.methods.fedirm.training import Views, train_labelled
from grandrounds.methods.fedirm.uncertainty import make_teacher
from grandrounds.methods.fedirm.unlabelled import SiteTeacher, train_unlabelled
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import Problem
from grandrounds.seeding import torch_generator

RATE, DROPOUT = 2e-4, 0.2
MIN_CONFIDENCE = 0.15
SCALE, FULL_RAMP = 15.0, 31
# The released filter and statistics; draws are made in the head.
UNLABELLED = UnlabelledOptions(
    draws=11, uncertainty_threshold=2.0, min_confidence=MIN_CONFIDENCE, bn_updates="code",
    consistency_divisor="batch_size", consistency_scale=SCALE,
)  # fmt: skip
FULL_DRAWS, NO_DRAWS = "ours, draws of the whole network", "ours, no draws"
MODES = {FULL_DRAWS: "full", NO_DRAWS: "none"}


class FedIRMCase(Case):
    """Steps of one kind of site; dropout is before the last layer.

    Without labels, dropout is drawn in another order by the two loops, but for the passes of the loss in the first step. So
    updates are compared after one step with dropout and, for the small network, after three with one that drops nothing.
    """

    method = "FedIRM"
    comparisons = (("ours", "released"),)

    def __init__(
        self,
        part: Literal["labelled", "unlabelled"],
        backbone: str,
        image_size: int,
        batch_size: int,
        *,
        steps: int,
    ) -> None:
        self.title = f"{part}, {backbone}, {image_size} px, batches of {batch_size}"
        self.steps = steps
        self.checked_steps = (1, 3) if backbone == "compact" else (1,)
        self._part, self._batch = part, batch_size
        self.loops = ("ours", *(MODES if part == "unlabelled" else ()), "released", HALF)
        self._problem = Problem("phantom", PHANTOM_CLASSES, image_size, 3, backbone, dropout=DROPOUT)
        images = batch_size * max(steps, *self.checked_steps)
        labelled = images if part == "labelled" else 0
        self._context = phantom_context("site-1", self._problem, images, labelled, FULL_RAMP)
        classes = len(PHANTOM_CLASSES)
        scores = torch.randn(classes, classes, generator=torch_generator("relation"))
        self._target = Relation(scores.softmax(dim=1), torch.ones(classes, dtype=torch.int64))

    def forward(self) -> Work:
        """One forward pass of a batch."""
        size = self._problem.image_size
        return partial(self._network(DROPOUT), torch.zeros(self._batch, 3, size, size))

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """A fresh network, and what trains it."""
        nothing_dropped = self._part == "unlabelled" and dtype == torch.float64 and steps > 1
        network = in_precision(self._network(1e-15 if nothing_dropped else DROPOUT), dtype)
        if loop == "released":
            network = in_default_layout(network)
            released = self._released if self._part == "unlabelled" else self._released_labelled
            return network, lambda: released(network, steps)
        context = replace(self._context, precision=precision_of(loop))
        options = replace(UNLABELLED, mc_dropout=MODES[loop]) if loop in MODES else UNLABELLED
        return network, lambda: self._train(network, context, steps, options)

    def _network(self, dropout: float) -> nn.Module:
        spec = replace(self._problem, dropout=dropout).model_spec(pretrained=False)
        return build_model(spec, seed=1).train()

    def _train(self, network: nn.Module, context: SiteContext, steps: int, options: UnlabelledOptions) -> None:
        optimizer = new_optimizer(network.parameters(), "adam", RATE)
        local = LocalOptions(batch_size=self._batch, steps=steps)
        if self._part == "labelled":
            train_labelled(network, optimizer, context, local, LabelledOptions(), RelationOptions())
            return
        teacher = SiteTeacher(network, options, {})
        train_unlabelled(network, optimizer, context, local, options, RelationOptions(), self._target, teacher)

    def _released(self, network: nn.Module, steps: int) -> None:
        optimizer, teacher = torch.optim.Adam(network.parameters(), lr=RATE), make_teacher(network)
        views = Views(self._context, "unlabelled")
        with self._context.torch_seeded("training"):
            for step, rows in enumerate(self._batches(steps)):
                drawn = [view.contiguous() for view in views.draw(rows, step, 2)]
                fedirm_step(
                    network, teacher, optimizer, drawn, self._target.matrix,
                    factor=SCALE, number=step, min_confidence=MIN_CONFIDENCE, batch_size=self._batch,
                )  # fmt: skip

    def _released_labelled(self, network: nn.Module, steps: int) -> None:
        optimizer, views = torch.optim.Adam(network.parameters(), lr=RATE), Views(self._context, "labelled")
        with self._context.torch_seeded("training"):
            for step, rows in enumerate(self._batches(steps)):
                drawn = [view.contiguous() for view in views.draw(rows, step, 2)]
                fedirm_labelled_step(network, optimizer, drawn, torch.from_numpy(self._context.data.labels[rows]), [])

    def _batches(self, steps: int) -> Iterator[Indices]:
        rows, generator = self._context.data.rows(self._part), self._context.generator(f"{self._part} batches")
        return index_batches(rows, self._batch, steps, generator)
