"""Batch norm's running statistics for the weights as they are.

The moving average of training (a tenth of each batch) is about the weights of the last few dozen steps. Where those still
change fast, a network that normalises by it predicts far worse than one that normalises by its batch. The remedy is to
compute the statistics anew: Wu & Johnson, "Rethinking 'Batch' in BatchNorm", 2021, section 3 ("precise" batch norm).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from grandrounds.methods.mutual.predictions import as_input
from grandrounds.methods.mutual.work import Work
from grandrounds.models.norm import BATCH_NORMS
from grandrounds.seeding import numpy_generator

Indices = NDArray[np.int64]


@torch.no_grad()
def recalibrate_batch_norm(
    network: nn.Module, images: NDArray[np.uint8], rows: Indices, work: Work, batch_size: int = 64
) -> None:
    """Replace the running statistics of all batch norms by means over batches of the same size, or nearly.

    Args:
        network: its running statistics change in place, and nothing else; without batch norm nothing does.
        images: shape ``(images, height, width, channels)``, uint8.
        rows: which of them; at least two.
        work: where to compute.
        batch_size: about how many images are in a batch, at least two. Mean and variance are averaged over the batches.
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
            work.check_abort()
            with work.autocast():
                network(as_input(network, images[part], work.device))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in training:
            module.training = mode


def _parts(rows: Indices, batch_size: int) -> Iterable[Indices]:
    """Batches in a fixed random order that differ in size by one at most, so that a mean over them is one over the images.

    In files that are sorted by class, images that stand together are of one class, and the mean variance of such batches is
    far below that of all images.
    """
    mixed = numpy_generator("settled statistics").permutation(rows)
    count = max(1, round(len(rows) / batch_size))
    return (mixed[start::count] for start in range(count))
