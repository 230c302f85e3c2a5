"""Federated ridge regression at a site: counts of classes, sums of products of features, validation losses."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.federation.site.closed_form import labelled_images, sums_at_site, temperature_losses
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
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
from grandrounds.models.closed_form.sums import Sums
from grandrounds.privacy.gate.treatments import SUPPORT
from grandrounds.protocol.messages import Payload, Release, ReleaseKind, Result


class RidgeExecutor(SiteExecutor):
    """Answers the three phases of :class:`~grandrounds.methods.ridge.controller.RidgeController`; it trains nothing itself.

    A class with fewer patients here than the site's minimum is left out of its counts and sums. A site without labels has
    none, and scores as the others do.
    """

    view_options: ViewOptions
    needs_labels = False
    needs_exact: ClassVar[str] = "its sums are of what the network gives"
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
        answers = {COUNT: self._count, SOLVE: self._add_up, LOGITS: self._temper}
        phase: Any = payload.values.get(PHASE)
        if phase not in answers:
            raise MessageError(f"a task of ridge regression has no phase {phase!r}")
        return answers[phase](payload, context)

    def _count(self, payload: Payload, context: SiteContext) -> Result:
        rows, targets, support = _labelled(context)
        return _released(CLASS_COUNTS, {CLASS_COUNTS: torch.from_numpy(targets.sum(axis=0)).long()}, support, len(rows))

    def _add_up(self, payload: Payload, context: SiteContext) -> Result:
        sums, support, images = self.site_sums(payload, context, payload.parts[CLASS_WEIGHTS][CLASS_WEIGHTS])
        return _released(SUMS, sums.packed(), support, images)

    def site_sums(self, payload: Payload, context: SiteContext, class_weights: Tensor) -> tuple[Sums, Tensor, int]:
        """The sums of this site, the patients of each class, and the number of images."""
        rows, targets, support = _labelled(context)
        network = self.starting_model(payload, context).eval()
        sums = sums_at_site(
            network, rows, targets, class_weights, context, self.view_options.views, payload.values[LARGEST_NORM]
        )
        return sums, support, len(rows)

    def _temper(self, payload: Payload, context: SiteContext) -> Result:
        count = len(context.data.rows("val"))
        if not count:
            return Result(metrics={VALIDATION_IMAGES: 0.0}, samples=1)
        network = self.starting_model(payload, context).eval()
        losses = temperature_losses(network, payload.parts[LOGITS][CENTRE], payload.parts[LOGITS][OFFSET], context)
        metrics = {temperature_metric(number): loss for number, loss in enumerate(losses)}
        return Result(metrics={**metrics, VALIDATION_IMAGES: float(count)}, samples=1)


def _labelled(context: SiteContext) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """What the sums are of: no class of fewer patients than the site's policy asks for."""
    return labelled_images(context, context.release_minimum(ReleaseKind.SUFFICIENT_STATISTICS, SUMS))


def _released(name: str, tensors: dict[str, Tensor], support: Tensor, samples: int) -> Result:
    release = Release(ReleaseKind.SUFFICIENT_STATISTICS, {**tensors, SUPPORT: support})
    return Result({name: release}, {"samples": float(samples)}, samples)
