"""Local semi-supervised training: supervised loss on labelled images, pseudo-labels on the others.

FixMatch labels an unlabelled image from the weak view and learns it on the strong view. A *guide* may have a say in the
pseudo-labels; FedPerl's peers do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.augment import View, draw_views, to_tensor
from grandrounds.data.batches import index_batches
from grandrounds.errors import ConfigurationError
from grandrounds.federation.context import SiteContext
from grandrounds.methods.fixmatch.loss import UnsupervisedReduction, pseudo_labels, unsupervised_loss
from grandrounds.methods.supervised.training import LabelledBatches, Meter, TrainingOptions, require_finite_loss


@dataclass(frozen=True)
class SemiSupervisedOptions:
    """What FixMatch adds to supervised training.

    Attributes:
        threshold: least confidence of a pseudo-label, in [0, 1]; FedPerl uses 0.6 federated and 0.9 alone.
        unsupervised_weight: factor of the unsupervised loss (FedPerl: beta = 0.5).
        unsupervised_reduction: mean over the accepted images (FedPerl's code) or over the batch (FixMatch).
        equalize_noop: leave out RandAugment's equalisation, as FedPerl's code does.
    """

    threshold: float = 0.6
    unsupervised_weight: float = 0.5
    unsupervised_reduction: UnsupervisedReduction = "accepted_mean"
    equalize_noop: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        if not 0 <= self.threshold <= 1:
            raise ConfigurationError(f"threshold must be between 0 and 1, got {self.threshold}")
        if not self.unsupervised_weight >= 0:
            raise ConfigurationError(f"unsupervised_weight must be at least 0, got {self.unsupervised_weight}")
        if self.unsupervised_reduction not in ("accepted_mean", "batch_mean"):
            raise ConfigurationError(
                f"unsupervised_reduction must be accepted_mean or batch_mean, got {self.unsupervised_reduction!r}"
            )


class Guide(Protocol):
    """Has a say in pseudo-labels."""

    needs_gradient: bool

    def __call__(self, images: Tensor, local: Tensor) -> tuple[Tensor, Tensor | None]:
        """Guide one step.

        Args:
            images: weak views of the unlabelled batch, shape ``(batch, channels, height, width)``.
            local: the own model's probabilities on them, shape ``(batch, classes)``, with a graph if ``needs_gradient``.

        Returns:
            The probabilities to take pseudo-labels from, without a graph, and a further loss or None.
        """


class UnlabelledBatches:
    """The unlabelled part of each step."""

    def __init__(self, context: SiteContext, training: TrainingOptions, options: SemiSupervisedOptions) -> None:
        self._context = context
        self._options = options
        self.rows = context.data.rows("unlabelled")
        self._batches = (
            index_batches(self.rows, training.batch_size, training.steps, context.generator("unlabelled batches"))
            if len(self.rows)
            else None
        )
        self._key = context.key("unlabelled views")

    def loss(self, network: nn.Module, step: int, guide: Guide | None, meter: Meter) -> Tensor | None:
        """The weighted unsupervised loss of the next batch and what the guide adds; None when there is nothing to learn."""
        if self._batches is None:
            return None
        rows = next(self._batches)
        weak = self._views(rows, step, "weak")
        # The weak pass runs in training mode: it updates the running statistics of batch norm, as FedPerl's does.
        with torch.set_grad_enabled(guide is not None and guide.needs_gradient):
            local = torch.softmax(network(weak).float(), dim=1)
        target, extra = guide(weak, local) if guide else (local, None)
        labels, accepted, _ = pseudo_labels(target, self._options.threshold)
        self._count(rows, labels, accepted, meter)
        losses = [] if extra is None else [extra]
        if bool(accepted.any()):
            positions = accepted.nonzero()[:, 0].cpu().numpy()
            strong = network(self._views(rows, step, "strong", positions)).float()
            unsupervised = unsupervised_loss(strong, labels[accepted], len(rows), self._options.unsupervised_reduction)
            meter.add("loss_unlabelled", unsupervised)
            losses.append(self._options.unsupervised_weight * unsupervised)
        return torch.stack(losses).sum() if losses else None

    def _views(self, rows: np.ndarray, step: int, view: View, positions: np.ndarray | None = None) -> Tensor:
        context = self._context
        noop = self._options.equalize_noop
        return to_tensor(draw_views(context.data.images, rows, view, self._key, step, noop, positions), context.device)

    def _count(self, rows: np.ndarray, labels: Tensor, accepted: Tensor, meter: Meter) -> None:
        """Count how many are accepted, and how many of those rightly where the hidden label is known."""
        truth = torch.from_numpy(self._context.data.labels[rows]).to(labels.device)
        known = accepted & (truth >= 0)
        meter.add("seen", torch.tensor(len(rows)))
        meter.add("accepted", accepted.sum())
        meter.add("checked", known.sum())
        meter.add("right", (known & (labels == truth)).sum())


def train_semi_supervised(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    context: SiteContext,
    training: TrainingOptions,
    options: SemiSupervisedOptions,
    guide: Guide | None = None,
) -> dict[str, float]:
    """Train in place.

    Three forward passes per step, in this order: labelled, weak, strong (accepted images only).

    Args:
        network: in training mode.
        optimizer: of its parameters.
        context: of the task.
        training: steps, batches, labels.
        options: pseudo-labels.
        guide: has a say in the pseudo-labels; without one this is FixMatch.

    Returns:
        Means over the steps of ``loss``, ``loss_labelled``, ``loss_unlabelled``; ``accepted`` (share of unlabelled images)
        and ``pseudo_label_accuracy`` (where the true label is known); ``samples`` (training images of both kinds).

    Raises:
        TaskAborted: if the task was given up.
        DataError: if the site has no labelled image.
    """
    labelled = LabelledBatches(context, training)
    unlabelled = UnlabelledBatches(context, training, options)
    meter = Meter()
    with context.torch_seeded("training"):
        for step in range(training.steps):
            context.check_abort()
            with context.autocast():
                loss = labelled.loss(network, step)
                require_finite_loss(loss, step)
                meter.add("loss_labelled", loss)
                further = unlabelled.loss(network, step, guide, meter)
            total = loss if further is None else loss + further
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(total)
            optimizer.step()
            meter.add("loss", total)
    metrics = {name: meter.total(name) / training.steps for name in ("loss", "loss_labelled", "loss_unlabelled")}
    if meter.total("seen"):
        metrics["accepted"] = meter.total("accepted") / meter.total("seen")
    if meter.total("checked"):
        metrics["pseudo_label_accuracy"] = meter.total("right") / meter.total("checked")
    return {**metrics, "samples": float(len(labelled.rows) + len(unlabelled.rows))}
