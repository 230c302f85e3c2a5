"""Local supervised training with record-level differential privacy (DP-SGD).

All randomness is secret to the site: batches, views, dropout and noise. The server knows the job's seed, from which it
could derive the batches.
"""

from __future__ import annotations

import os

import torch

from grandrounds.data.images.views import View, draw_views, to_tensor
from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.supervised.loss import supervised_loss
from grandrounds.methods.supervised.training import TrainingOptions, rows_to_learn
from grandrounds.privacy.mechanisms.dp_sgd import PrivateStep, RecordLevelOptions, poisson_batches

SEED_BYTES = 6


def require_single_images(options: TrainingOptions) -> None:
    """Check that a step depends on the single images of its batch only.

    Raises:
        ConfigurationError: naming the option that prevents it, and its required value.
    """
    if options.class_weights != "none":
        raise ConfigurationError(
            f"record_noise_multiplier needs class_weights=none, got {options.class_weights}: class weights depend "
            "on all labels of the site"
        )
    if options.proximal_weight:
        raise ConfigurationError(
            f"record_noise_multiplier needs proximal_weight=0, got {options.proximal_weight}: gradients are clipped per "
            "image, and the proximal term belongs to no image"
        )


def train_privately(
    network: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    context: SiteContext,
    options: TrainingOptions,
    protection: RecordLevelOptions,
) -> dict[str, float]:
    """Train in place.

    Args:
        network: without batch norm.
        optimizer: of its parameters.
        context: of the task.
        options: of training; ``batch_size`` is the expected size of a batch.
        protection: clipping and noise.

    Returns:
        ``samples`` (labelled training images). The loss is not reported: it would be a number without noise.

    Raises:
        ConfigurationError: if a layer or the loss mixes the images of a batch.
        TaskAborted: if the task was given up.
        DataError: if there is nothing to train on.
    """
    rows = rows_to_learn(context, options)
    step = PrivateStep(network, supervised_loss, len(rows), protection)
    view: View = "weak" if options.weak_augmentation else "none"
    key, labels = _secret(), torch.from_numpy(context.data.labels)
    devices = [context.device] if context.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(_secret())
        for number, batch in enumerate(poisson_batches(rows, protection)):
            context.check_abort()
            images = to_tensor(draw_views(context.data.images, batch, view, key, number), context.device)
            with context.autocast():
                step.set_gradients(images, labels[batch].to(context.device))
            optimizer.step()
    return {"samples": float(len(rows))}


def _secret() -> int:
    return int.from_bytes(os.urandom(SEED_BYTES))
