"""Batch norm's running statistics, recomputed for the current weights.

The moving average of training (a tenth of each batch) describes the weights of the last few dozen steps. Where those still
change fast, a network that normalises by it predicts far worse than one that normalises by its batch. The remedy is to
recompute the statistics: Wu & Johnson, "Rethinking 'Batch' in BatchNorm", 2021, section 3 ("precise" batch norm).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.mutual.public import as_input
from grandrounds.models.norm import BATCH_NORMS
from grandrounds.seeding import numpy_generator

Indices = NDArray[np.int64]


@torch.no_grad()
def recalibrate_batch_norm(
    network: nn.Module, images: NDArray[np.uint8], rows: Indices, context: SiteContext, batch_size: int = 64
) -> None:
    """Replace the running statistics of all batch norms by means over batches of (nearly) the same size.

    Args:
        network: its running statistics change in place, and nothing else; without batch norm nothing does.
        images: shape ``(images, height, width, channels)``, uint8.
        rows: which of them; at least two.
        context: of the task.
        batch_size: approximate number of images in a batch, at least two. Mean and variance are averaged over the batches.
    """
    norms = [module for module in network.modules() if isinstance(module, BATCH_NORMS) and module.track_running_stats]
    if not norms:
        return
    training = [(module, module.training) for module in network.modules()]
    momenta = [norm.momentum for norm in norms]
    network.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over the batches
        norm.train()
    try:
        for part in _parts(rows, batch_size):
            context.check_abort()
            with context.autocast():
                network(as_input(network, images[part], context.device))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in training:
            module.training = mode


def _parts(rows: Indices, batch_size: int) -> Iterable[Indices]:
    """Batches in a fixed random order that differ in size by one at most, so that a mean over them is one over the images.

    In files that are sorted by class, neighbouring images are of one class, and the mean variance of such batches is far
    below that of all images.
    """
    mixed = numpy_generator("settled statistics").permutation(rows)
    count = max(1, round(len(rows) / batch_size))
    return (mixed[start::count] for start in range(count))
