"""Local steps of FedIRM, with and without labels, beside the released loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from benchmarks.local_step.case import HALF, Case, Work, context_of, in_default_layout, in_precision, precision_of
from benchmarks.local_step.loops import fedirm_labelled_step, fedirm_step
from grandrounds.data.batches import index_batches
from grandrounds.data.datasets.phantom import PHANTOM_CLASSES
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import new_optimizer
from grandrounds.methods.fedirm.options import ClientOptions, LabelledOptions, RelationOptions, UnlabelledOptions
from grandrounds.methods.fedirm.relation import Relation
from grandrounds.methods.fedirm.training import SiteTeacher, Views, train_labelled, train_unlabelled
from grandrounds.methods.fedirm.uncertainty import make_teacher
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.tasks import SINGLE
from grandrounds.seeding import torch_generator

RATE, DROPOUT = 2e-4, 0.2
MIN_CONFIDENCE = 0.15
SCALE, FULL_RAMP = 15.0, 31
# The released filter and statistics; draws are made in the head.
UNLABELLED = UnlabelledOptions(
    draws=11, uncertainty_threshold=2.0, min_confidence=MIN_CONFIDENCE, bn_updates="code",
    consistency_divisor="batch_size", consistency_scale=SCALE,
)  # fmt: skip
MODES = {"ours, draws of the whole network": "full", "ours, no draws": "none"}


class FedIRMCase(Case):
    """Steps of one kind of site; dropout is before the last layer.

    Without labels the two loops draw dropout in another order, except in the passes of the loss in the first step. So
    updates are compared after one step with dropout and, for the small network, after three steps that drop nothing.
    """

    method = "FedIRM"
    comparisons = (("ours", "released"),)

    def __init__(
        self, part: Literal["labelled", "unlabelled"], backbone: str, image_size: int, batch_size: int, *, steps: int
    ) -> None:
        self.title = f"{part}, {backbone}, {image_size} px, batches of {batch_size}"
        self.steps = steps
        self.checked_steps = (1, 3) if backbone == "compact" else (1,)
        self.batch = (batch_size, 3, image_size, image_size)
        self._part = part
        self.loops = ("ours", *(MODES if part == "unlabelled" else ()), "released", HALF)
        self._problem = Problem("phantom", PHANTOM_CLASSES, image_size, 3, backbone, dropout=DROPOUT)
        images = batch_size * max(steps, *self.checked_steps)
        self._context = context_of("site-1", self._problem, images, images if part == "labelled" else 0, FULL_RAMP)
        classes = len(PHANTOM_CLASSES)
        scores = torch.randn(classes, classes, generator=torch_generator("relation"))
        self._target = Relation(scores.softmax(dim=1), torch.ones(classes, dtype=torch.int64))

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """A fresh network, and what trains it."""
        nothing_dropped = self._part == "unlabelled" and dtype == torch.float64 and steps > 1
        problem = replace(self._problem, dropout=1e-15 if nothing_dropped else DROPOUT)
        network = in_precision(build_model(problem.model_spec(pretrained=False), seed=1).train(), dtype)
        if loop == "released":
            network = in_default_layout(network)
            return network, lambda: self._released(network, steps)
        context = replace(self._context, precision=precision_of(loop))
        options = replace(UNLABELLED, mc_dropout=MODES[loop]) if loop in MODES else UNLABELLED
        return network, lambda: self._train(network, context, steps, options)

    def _train(self, network: nn.Module, context: SiteContext, steps: int, options: UnlabelledOptions) -> None:
        optimizer = new_optimizer(network.parameters(), "adam", RATE)
        common = (network, optimizer, context, ClientOptions(batch_size=self.batch[0], steps=steps))
        if self._part == "labelled":
            train_labelled(*common, LabelledOptions(), RelationOptions())
        else:
            train_unlabelled(
                *common, options, RelationOptions(), self._target, SiteTeacher(SINGLE, network, options, {})
            )

    def _released(self, network: nn.Module, steps: int) -> None:
        optimizer, teacher = torch.optim.Adam(network.parameters(), lr=RATE), make_teacher(network)
        data, views = self._context.data, Views(self._context, self._part)
        generator = self._context.generator(f"{self._part} batches")
        with self._context.torch_seeded("training"):
            batches = index_batches(data.rows(self._part), self.batch[0], steps, generator)
            for step, rows in enumerate(batches):
                drawn = [view.contiguous() for view in views.draw(rows, step, 2)]
                if self._part == "labelled":
                    fedirm_labelled_step(network, optimizer, drawn, torch.from_numpy(data.labels[rows]))
                else:
                    fedirm_step(
                        network, teacher, optimizer, drawn, self._target.matrix,
                        factor=SCALE, number=step, min_confidence=MIN_CONFIDENCE,
                    )  # fmt: skip
