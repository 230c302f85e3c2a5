"""Local semi-supervised training: supervised loss on labelled images, pseudo-labels on the others.

FixMatch labels an unlabelled image from the weak view and learns it on the strong view. A *guide* may have a say in the
pseudo-labels; FedPerl's peers do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.batches import index_batches
from grandrounds.data.images.randaugment import LEVELS
from grandrounds.data.images.views import View, draw_views, to_tensor
from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Meter, OptimizerStep, require_finite, train_steps
from grandrounds.methods.fixmatch.loss import PseudoLabels, UnsupervisedReduction, pseudo_labels, unsupervised_loss
from grandrounds.methods.supervised.training import LabelledBatches, TrainingOptions
from grandrounds.models.precision import at_least_single
from grandrounds.options import require_fractions, require_min, require_words

LEAST_AND_GREATEST = 2


@dataclass(frozen=True)
class SemiSupervisedOptions:
    """What FixMatch adds to supervised training.

    Attributes:
        threshold: least confidence of a pseudo-label, in [0, 1]; FedPerl uses 0.6 federated and 0.9 alone.
        unsupervised_weight: factor of the unsupervised loss (FedPerl: beta = 0.5).
        unsupervised_reduction: mean over the accepted images (FedPerl's code) or over the batch (FixMatch).
        equalize_noop: leave out RandAugment's equalisation, as FedPerl's code does.
        supervised_weight: factor of the supervised loss.
        unlabelled_batch_size: unlabelled images per step; None for as many as labelled ones.
        strong_levels: least and greatest strength M of RandAugment, drawn per image (FedMatch: 2 to 5); None for all
            levels.
        weak_pass: mode of the network when it predicts on weak views: ``train``, which updates the running statistics of
            batch norm and draws dropout, as FedPerl's code does, or ``eval``.
        accept_unlabelled: let sites without labelled images take part, on pseudo-labels alone.
    """

    threshold: float = 0.6
    unsupervised_weight: float = 0.5
    unsupervised_reduction: UnsupervisedReduction = "accepted_mean"
    equalize_noop: bool = False
    supervised_weight: float = 1.0
    unlabelled_batch_size: int | None = None
    strong_levels: tuple[int, int] | None = None
    weak_pass: Literal["train", "eval"] = "train"
    accept_unlabelled: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_fractions(self, "threshold")
        require_min(self, 0, "unsupervised_weight", "supervised_weight")
        require_words(self, "unsupervised_reduction", "weak_pass")
        require_min(self, 2, "unlabelled_batch_size")
        if self.strong_levels is not None and len(self.strong_levels) != LEAST_AND_GREATEST:
            raise ConfigurationError(f"strong_levels must be two numbers, got {list(self.strong_levels)}")
        if self.strong_levels is not None and not 1 <= self.strong_levels[0] <= self.strong_levels[1] <= LEVELS:
            raise ConfigurationError(
                f"strong_levels must be the least and the greatest strength, from 1 to {LEVELS}, "
                f"got {list(self.strong_levels)}"
            )


class Guide(Protocol):
    """Has a say in pseudo-labels."""

    needs_gradient: bool

    def __call__(self, images: Tensor, local: Tensor, threshold: float) -> tuple[PseudoLabels, Tensor | None]:
        """Guide one step.

        Args:
            images: weak views of the unlabelled batch, shape ``(batch, channels, height, width)``.
            local: the own model's probabilities on them, shape ``(batch, classes)``, with a graph if ``needs_gradient``.
            threshold: least confidence of an accepted label.

        Returns:
            The pseudo-labels, and a further loss or None.
        """


class UnlabelledBatches:
    """The unlabelled part of each step."""

    def __init__(self, context: SiteContext, training: TrainingOptions, options: SemiSupervisedOptions) -> None:
        self._context = context
        self._options = options
        self._weak: View = "weak" if training.weak_augmentation else "none"
        self.rows = context.data.rows("unlabelled")
        size = options.unlabelled_batch_size or training.batch_size
        generator = context.generator("unlabelled batches")
        self._batches = index_batches(self.rows, size, training.steps, generator) if len(self.rows) else None
        self._key = context.key("unlabelled views")

    def loss(self, network: nn.Module, step: int, guide: Guide | None, meter: Meter) -> Tensor | None:
        """The weighted unsupervised loss of the next batch and what the guide adds; None when there is nothing to learn."""
        if self._batches is None:
            return None
        rows = next(self._batches)
        weak = self._views(rows, step, self._weak)
        network.train(self._options.weak_pass == "train")
        with torch.set_grad_enabled(guide is not None and guide.needs_gradient):
            local = torch.softmax(at_least_single(network(weak)), dim=1)
        network.train()
        require_finite(local, "prediction", step)
        threshold = self._options.threshold
        found, extra = guide(weak, local, threshold) if guide else (pseudo_labels(local, threshold), None)
        self._count(rows, found, meter)
        losses = [] if extra is None else [extra]
        if bool(found.accepted.any()):
            positions = found.accepted.nonzero()[:, 0].cpu().numpy()
            strong = at_least_single(network(self._views(rows, step, "strong", positions)))
            unsupervised = unsupervised_loss(
                strong, found.labels[found.accepted], len(rows), self._options.unsupervised_reduction
            )
            meter.add("loss_unlabelled", unsupervised)
            losses.append(self._options.unsupervised_weight * unsupervised)
        return torch.stack(losses).sum() if losses else None

    def _views(self, rows: np.ndarray, step: int, view: View, positions: np.ndarray | None = None) -> Tensor:
        context, options = self._context, self._options
        views = draw_views(
            context.data.images,
            rows,
            view,
            self._key,
            step,
            options.equalize_noop,
            positions,
            strong_levels=options.strong_levels,
        )
        return to_tensor(views, context.device)

    def _count(self, rows: np.ndarray, found: PseudoLabels, meter: Meter) -> None:
        """Count how many are accepted, and how many of those rightly where the hidden label is known."""
        labels, accepted, _ = found
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
        DataError: if the site has no labelled image, and none without a label either or has to have one.
    """
    unlabelled = UnlabelledBatches(context, training, options)
    pseudo_labels_only = options.accept_unlabelled and len(unlabelled.rows) and not len(context.data.rows("labelled"))
    labelled = None if pseudo_labels_only else LabelledBatches(context, training)
    meter = Meter()

    def loss_of(step: int) -> Tensor | None:
        """The loss of a step; none where it has no image to learn from."""
        losses = []
        with context.autocast():
            if labelled:
                supervised = labelled.loss(network, step)
                meter.add("loss_labelled", supervised)
                losses.append(options.supervised_weight * supervised)
            further = unlabelled.loss(network, step, guide, meter)
            losses += [] if further is None else [further]
        return torch.stack(losses).sum() if losses else None

    train_steps(context, training.steps, loss_of, OptimizerStep(network, optimizer, training.proximal_weight), meter)
    metrics = {name: meter.total(name) / training.steps for name in ("loss", "loss_labelled", "loss_unlabelled")}
    if meter.total("seen"):
        metrics["accepted"] = meter.total("accepted") / meter.total("seen")
    if meter.total("checked"):
        metrics["pseudo_label_accuracy"] = meter.total("right") / meter.total("checked")
    return {**metrics, "samples": float((len(labelled.rows) if labelled else 0) + len(unlabelled.rows))}
