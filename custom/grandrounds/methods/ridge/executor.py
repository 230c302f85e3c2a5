"""Federated ridge regression at a site: counts of classes, sums of products of features, validation losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.batches import eval_batches
from grandrounds.errors import MessageError
from grandrounds.evaluation.external import BATCH
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.methods.ridge.logits import TEMPERATURES
from grandrounds.methods.ridge.options import ViewOptions
from grandrounds.methods.ridge.phases import (
    CENTRE,
    CLASS_COUNTS,
    CLASS_WEIGHTS,
    COUNT,
    LARGEST_NORM,
    LOGITS,
    OFFSET,
    PHASE,
    SOLVE,
    SUMS,
    VALIDATION_IMAGES,
    temperature_metric,
)
from grandrounds.methods.ridge.sums import Sums, sums_of
from grandrounds.models.compute import averaged_logits
from grandrounds.models.depths import depth_features, depth_head
from grandrounds.privacy.gate.treatment import SUPPORT
from grandrounds.protocol.messages import Payload, Release, ReleaseKind, Result


class RidgeExecutor(SiteExecutor):
    """Answers the three phases of :class:`~grandrounds.methods.ridge.controller.RidgeController`; it trains nothing itself.

    A class with fewer patients here than the site's minimum is left out of its counts and sums. A site without labels has
    none, and scores as the others do.
    """

    view_options: ViewOptions
    needs_labels = False
    needs_exclusive: ClassVar[bool] = False
    models: ClassVar[tuple[str, ...]] = ("shared",)
    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType(
        {CLASS_COUNTS: ReleaseKind.SUFFICIENT_STATISTICS, SUMS: ReleaseKind.SUFFICIENT_STATISTICS}
    )

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Answer the phase of a task.

        Raises:
            MessageError: if there is no such phase.
        """
        answers, phase = self.answers, payload.values.get(PHASE)
        if phase not in answers:
            raise MessageError(f"a task of ridge regression has no phase {phase!r}")
        return answers[phase](payload, context)

    @property
    def answers(self) -> Mapping[Any, Callable[[Payload, SiteContext], Result]]:
        """To each phase."""
        return {COUNT: self._count, SOLVE: self._add_up, LOGITS: self._temper}

    def minimum(self, context: SiteContext) -> int:
        """Patients of a class that has a part in this site's sums."""
        return context.release_minimum(ReleaseKind.SUFFICIENT_STATISTICS, SUMS)

    def _count(self, payload: Payload, context: SiteContext) -> Result:
        rows, targets, support = self.labelled(context)
        return _released(CLASS_COUNTS, {CLASS_COUNTS: torch.from_numpy(targets.sum(axis=0)).long()}, support, len(rows))

    def _add_up(self, payload: Payload, context: SiteContext) -> Result:
        sums, support, images = self.site_sums(payload, context, payload.parts[CLASS_WEIGHTS][CLASS_WEIGHTS])
        return _released(SUMS, sums.packed(), support, images)

    def site_sums(self, payload: Payload, context: SiteContext, class_weights: Tensor) -> tuple[Sums, Tensor, int]:
        """The sums of this site, the patients of each class, and the number of images."""
        rows, targets, support = self.labelled(context)
        network = self.starting_model(payload, context).eval()
        weights = context.problem.kind.image_weights(torch.from_numpy(targets), class_weights)
        batches = self._batches(rows, targets, weights, payload.values[LARGEST_NORM], network, context)
        return sums_of(batches, depth_head(network).features, targets.shape[1]), support, len(rows)

    def _batches(
        self,
        rows: np.ndarray,
        targets: np.ndarray,
        weights: Tensor,
        norm: float,
        network: nn.Module,
        context: SiteContext,
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        views = self.view_options.views
        for view in views:
            for places in eval_batches(np.arange(len(rows)), BATCH):
                context.check_abort()
                features = depth_features(network, context.views(rows[places], view)).double().cpu()
                size = torch.linalg.vector_norm(features, dim=1, keepdim=True)
                yield (
                    features * (norm / size.clamp(min=norm)),
                    torch.from_numpy(targets[places]),
                    weights[places] / len(views),
                )

    def _temper(self, payload: Payload, context: SiteContext) -> Result:
        rows, kind = context.data.rows("val"), context.problem.kind
        if not len(rows):
            return Result(metrics={VALIDATION_IMAGES: 0.0}, samples=1)
        network = self.starting_model(payload, context).eval()
        with torch.no_grad():
            batches = eval_batches(rows, BATCH)
            view = context.problem.test_view
            scores = (
                torch.cat([averaged_logits(network, context.unchanged, one, view) for one in batches]).double().cpu()
            )
        labels = torch.from_numpy(context.data.labels[rows])
        scores = scores - payload.parts[LOGITS][CENTRE]
        losses = [
            float(kind.loss(one * scores + payload.parts[LOGITS][OFFSET], labels)) for one in TEMPERATURES.tolist()
        ]
        found = {temperature_metric(number): loss for number, loss in enumerate(losses)}
        return Result(metrics={**found, VALIDATION_IMAGES: float(len(rows))}, samples=1)

    def labelled(self, context: SiteContext) -> tuple[np.ndarray, np.ndarray, Tensor]:
        """What the sums are of.

        Returns:
            Rows of training images; their targets, float64, shape ``(rows, classes)``; and the patients of each class.
        """
        data, kind, classes = context.data, context.problem.kind, context.problem.classes
        rows, support = data.rows("labelled"), torch.tensor(list(data.patients_by_class("labelled").values()))
        minimum = self.minimum(context)
        few = (support > 0) & (support < minimum)
        targets = np.array([kind.class_counts(data.labels[[row]], len(classes)) for row in rows], np.float64)
        targets = targets.reshape(len(rows), len(classes))
        if few.any():  # one of several findings cannot be left out of an image
            names = ", ".join(classes[number] for number in few.nonzero().flatten().tolist())
            kind.require_exclusive(f"the site's minimum of {minimum} patients", f"leave {names} out of problem.classes")
        used = kind.complete(data.labels[rows]) & ~targets[:, few.numpy()].any(axis=1)
        return rows[used], targets[used], torch.where(few, 0, support)


def _released(name: str, tensors: dict[str, Tensor], support: Tensor, samples: int) -> Result:
    release = Release(ReleaseKind.SUFFICIENT_STATISTICS, {**tensors, SUPPORT: support})
    return Result({name: release}, {"samples": float(samples)}, samples)
