"""Local supervised training for a fixed number of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.batches import index_batches
from grandrounds.data.images.views import View, draw_views, to_tensor
from grandrounds.data.site import SiteData
from grandrounds.errors import DataError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Algorithm, Meter, OptimizerStep, train_steps
from grandrounds.methods.supervised.loss import median_class_weights, supervised_loss
from grandrounds.options import require_min, require_positive, require_words


@dataclass(frozen=True)
class TrainingOptions:
    """How a site trains in one round.

    Attributes:
        labels: which labels count: ``labelled`` those that are meant to (lower bounds, semi-supervised methods), ``all``
            every known one of the training part (upper bounds).
        batch_size: images per step and kind.
        steps: local steps per round, the same at every site (FedVC; FedPerl pins 416 images, 26 steps of 16).
        learning_rate: of the optimizer.
        class_weights: ``median`` weights the cross-entropy by median frequency (as FedPerl's code), ``none`` does not.
        algorithm: ``adam``, or ``sgd`` without momentum; neither with weight decay.
        proximal_weight: mu of FedProx, see :func:`~grandrounds.federation.site.training.proximal_loss`; 0 is without.
        weak_augmentation: whether images are flipped, rotated and jittered; else they are taken as they are.
    """

    labels: Literal["labelled", "all"] = "labelled"
    batch_size: int = 16
    steps: int = 26
    learning_rate: float = 5e-5
    class_weights: Literal["median", "none"] = "median"
    algorithm: Algorithm = "adam"
    proximal_weight: float = 0.0
    weak_augmentation: bool = True

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_words(self, "labels", "class_weights", "algorithm")
        require_min(self, 2, "batch_size")
        require_min(self, 1, "steps")
        require_positive(self, "learning_rate")
        require_min(self, 0, "proximal_weight")


class LabelledBatches:
    """The labelled part of each step: weak views, labels and the class weights of the loss.

    Args:
        context: of the task.
        options: how to train.

    Raises:
        DataError: if the site has no labelled training image, naming the site.
    """

    def __init__(self, context: SiteContext, options: TrainingOptions) -> None:
        self._context = context
        self.rows = rows_to_learn(context, options)
        self._batches = index_batches(
            self.rows, options.batch_size, options.steps, context.generator("labelled batches")
        )
        self._key = context.key("labelled views")
        self._view: View = "weak" if options.weak_augmentation else "none"
        self.weights: Tensor | None = None
        if options.class_weights == "median":
            counts = np.bincount(context.data.labels[self.rows], minlength=len(context.problem.classes))
            self.weights = median_class_weights(torch.from_numpy(counts)).to(context.device)

    def loss(self, network: nn.Module, step: int) -> Tensor:
        """The supervised loss of the next batch, in the context's precision."""
        context = self._context
        rows = next(self._batches)
        images = to_tensor(draw_views(context.data.images, rows, self._view, self._key, step), context.device)
        labels = torch.from_numpy(context.data.labels[rows]).to(context.device)
        with context.autocast():
            return supervised_loss(network(images), labels, self.weights)


def labelled_rows(data: SiteData, labels: Literal["labelled", "all"]) -> np.ndarray:
    """Rows of the training images whose label counts."""
    rows = data.rows("labelled" if labels == "labelled" else "train")
    return rows[data.labels[rows] >= 0]


def rows_to_learn(context: SiteContext, options: TrainingOptions) -> np.ndarray:
    """Rows of the training images whose label counts, at least one.

    Raises:
        DataError: if there is none, naming the site.
    """
    rows = labelled_rows(context.data, options.labels)
    if not len(rows):
        raise DataError(
            f"{context.site}: the labelled set is empty: no training image has a label that counts; label some, or "
            "leave this site out of the job"
        )
    return rows


def train_supervised(
    network: nn.Module, optimizer: torch.optim.Optimizer, context: SiteContext, options: TrainingOptions
) -> dict[str, float]:
    """Train in place.

    Returns:
        ``loss`` (mean over the steps) and ``samples`` (labelled training images).

    Raises:
        TaskAborted: if the task was given up.
        DataError: if there is nothing to train on.
    """
    batches = LabelledBatches(context, options)
    descent, meter = OptimizerStep(network, optimizer, options.proximal_weight), Meter()
    train_steps(context, options.steps, lambda step: batches.loss(network, step), descent, meter)
    return {"loss": meter.total("loss") / options.steps, "samples": float(len(batches.rows))}
