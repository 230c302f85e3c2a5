"""A model's predictions on the public images: what a site publishes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.data.augment import to_tensor
from grandrounds.methods.mdhfl.options import Content, Statistics
from grandrounds.methods.mdhfl.work import Work
from grandrounds.models.batch_statistics import BATCH_NORMS, statistics_untouched

Indices = NDArray[np.int64]


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

    With ``eval`` a row does not depend on the images beside it, so batches may be large. With ``batch`` it does, and a last
    batch of one image joins the one before.

    Args:
        network: in any mode; it is left in the mode it was in, parameters and running statistics unchanged.
        images: all public images, shape ``(images, height, width, channels)``, uint8.
        rows: which of them.
        work: where to compute.
        batch_size: images in a batch.
        statistics: what batch norm uses: its running statistics, or those of the batch (RHFL).
        content: ``probabilities`` or ``logits``.

    Returns:
        Shape ``(len(rows), classes)`` on the CPU, in the order of ``rows``; float64 if the network is, else float32.
    """
    parts: list[Tensor] = []
    with _predicting(network, statistics):
        for batch in _batches(rows, batch_size):
            work.check_abort()
            with work.autocast():
                logits = network(as_input(network, images[batch], work.device))
            logits = logits if logits.dtype == torch.float64 else logits.float()
            parts.append(logits if content == "logits" else logits.softmax(dim=1))
    # One transfer: a copy after every batch would make the device wait.
    return torch.cat(parts).cpu()


def as_input(network: nn.Module, batch: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Images in [0, 1] in the precision of the network; see :func:`~grandrounds.data.augment.to_tensor`."""
    return to_tensor(batch, device).to(next(network.parameters()).dtype)


@contextmanager
def _predicting(network: nn.Module, statistics: Statistics) -> Iterator[None]:
    """Evaluation mode; batch norm may use the batch's statistics, and never changes its running ones."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        if statistics == "eval":
            yield
            return
        for module in network.modules():
            module.training = isinstance(module, BATCH_NORMS)
        with statistics_untouched(network):
            yield
    finally:
        for module, training in modes:
            module.training = training


def _batches(rows: Indices, batch_size: int) -> list[Indices]:
    batches: list[Indices] = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [np.concatenate(batches[-2:])]
    return batches
