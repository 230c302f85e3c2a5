"""Fed-SelfTraining, a baseline of FedIRM: sites without labels believe the global model.

The paper (Liu et al., MICCAI 2021, Table 1) names it and no more. Here the received model labels all images of a site once
a round, without dropout and augmentation, and the site learns these labels (expectation and maximisation in turn).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.batches import index_batches
from grandrounds.evaluation.external import predict
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Meter, OptimizerStep, train_steps
from grandrounds.methods.fedirm.loss import labelled_loss
from grandrounds.methods.fedirm.options import LocalOptions, UnlabelledOptions
from grandrounds.methods.fedirm.schedule import ramp_up
from grandrounds.methods.fedirm.training import Views, set_unlabelled_rate
from grandrounds.models.compute import at_least_single


def train_on_own_labels(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    context: SiteContext,
    local: LocalOptions,
    options: UnlabelledOptions,
) -> dict[str, float]:
    """Label the site's images with the network as it is, then train it in place on what is confident enough.

    Args:
        network: in training mode.
        optimizer: of its parameters.
        context: of the task.
        local: batches and steps; a pass is over the confident images.
        options: ``self_training_confidence`` and the ramp.

    Returns:
        ``loss`` (mean over the steps), ``kept`` (share of confident images), ``pseudo_label_accuracy`` of these where
        hidden labels are known, and ``samples``. Without a confident image nothing is trained.

    Raises:
        TaskAborted: if the task was given up.
    """
    rows = context.data.rows("unlabelled")
    with context.autocast():
        confidence, predicted = predict(network, context.data.images, rows, context.device).max(dim=1)
    confident = (confidence >= options.self_training_confidence).numpy()
    kept, labels = rows[confident], predicted.numpy()[confident]
    metrics = {"loss": 0.0, "kept": len(kept) / len(rows), "samples": float(len(rows))}
    truth = context.data.labels[kept]
    if (truth >= 0).any():
        metrics["pseudo_label_accuracy"] = float((labels == truth)[truth >= 0].mean())
    if len(kept):
        label_of = np.full(len(context.data.labels), -1)
        label_of[kept] = labels
        metrics["loss"] = _learn(network, optimizer, context, local, options, kept, label_of)
    return metrics


def _learn(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    context: SiteContext,
    local: LocalOptions,
    options: UnlabelledOptions,
    rows: np.ndarray,
    label_of: np.ndarray,
) -> float:
    steps = local.round_steps(len(rows))
    views, meter = Views(context, "unlabelled"), Meter()
    batches = index_batches(rows, local.batch_size, steps, context.generator("unlabelled batches"))

    def loss_of(step: int) -> Tensor:
        """The loss of a step on the pseudo-labels of its batch, times the ramp."""
        batch = next(batches)
        with context.autocast():
            logits = network(views.draw(batch, step, 1)[0])
        ramp = ramp_up(local.elapsed(context.round_number, step, len(rows)), options.ramp_length, options.ramp_kind)
        set_unlabelled_rate(optimizer, options, ramp)
        return ramp * labelled_loss([at_least_single(logits)], torch.from_numpy(label_of[batch]).to(context.device))

    train_steps(context, steps, loss_of, OptimizerStep(network, optimizer), meter)
    return meter.total("loss") / steps
