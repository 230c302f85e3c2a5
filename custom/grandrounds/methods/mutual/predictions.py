"""A model's predictions on the public images: what a site publishes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.data.images.views import to_tensor
from grandrounds.methods.mutual.options import Content, Statistics
from grandrounds.methods.mutual.work import Work
from grandrounds.models.compute import at_least_single
from grandrounds.models.norm import BATCH_NORMS, folded_copy, statistics_untouched

Indices = NDArray[np.int64]
# Maps of more images do not fit into the caches of a processor.
CPU_BATCH = 32


@torch.no_grad()
def public_rows(
    network: nn.Module,
    images: NDArray[np.uint8],
    rows: Indices,
    work: Work,
    *,
    batch_size: int = 256,
    statistics: Statistics = "eval",
    content: Content = "probabilities",
) -> Tensor:
    """Predict the public images of an exchange.

    With ``eval`` a row does not depend on the images beside it: batches may be large on a GPU, and are smaller on a CPU,
    which is then faster. With ``batch`` it does, and a last batch of one image joins the one before.

    Args:
        network: in any mode; it is left in the mode it was in, parameters and running statistics unchanged.
        images: all public images, shape ``(images, height, width, channels)``, uint8.
        rows: which of them.
        work: where to compute.
        batch_size: images in a batch, with ``eval`` at most.
        statistics: what batch norm uses: its running statistics, or those of the batch (RHFL).
        content: ``probabilities`` or ``logits``.

    Returns:
        Shape ``(len(rows), classes)`` on the CPU, in the order of ``rows``; float64 if the network is, else float32.
    """
    parts: list[Tensor] = []
    if statistics == "eval" and work.device.type == "cpu":
        batch_size = min(batch_size, CPU_BATCH)
    with _predicting(network, statistics) as predicting:
        for batch in _batches(rows, batch_size):
            work.check_abort()
            with work.autocast():
                logits = at_least_single(predicting(as_input(network, images[batch], work.device)))
            parts.append(logits if content == "logits" else logits.softmax(dim=1))
    # One transfer: a copy after every batch would make the device wait.
    return torch.cat(parts).cpu()


def as_input(network: nn.Module, batch: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Images in [0, 1] in the precision of the network; see :func:`~grandrounds.data.images.views.to_tensor`."""
    return to_tensor(batch, device).to(next(network.parameters()).dtype)


@contextmanager
def _predicting(network: nn.Module, statistics: Statistics) -> Iterator[nn.Module]:
    """Evaluation mode; batch norm may use the batch's statistics, and never changes its running ones."""
    if statistics == "eval":
        yield folded_copy(network)
        return
    modes = [(module, module.training) for module in network.modules()]
    for module in network.modules():
        module.training = isinstance(module, BATCH_NORMS)
    try:
        with statistics_untouched(network):
            yield network
    finally:
        for module, training in modes:
            module.training = training


def _batches(rows: Indices, batch_size: int) -> list[Indices]:
    batches: list[Indices] = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [np.concatenate(batches[-2:])]
    return batches
