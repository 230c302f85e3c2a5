"""The public images at a site, in the order that all sites have, and a model's predictions on them.

A public set is identified by the names of its images and the hashes of the decoded and resized images, because that is what
networks see: a file that differs in bytes and not in the picture does no harm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.data.partition.public_set import PublicImage, PublicSet
from grandrounds.data.site import SiteData
from grandrounds.errors import DataError
from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.mutual.options import Content, Statistics
from grandrounds.models.norm import BATCH_NORMS, folded_copy, statistics_untouched
from grandrounds.protocol.tensors import at_least_single

Indices = NDArray[np.int64]
# Maps of more images do not fit into the caches of a processor.
CPU_BATCH = 32


def public_images(data: SiteData, site: str) -> tuple[PublicSet, NDArray[np.uint8]]:
    """List the public images of a site.

    Args:
        data: the data set, none of whose images is missing.
        site: whose it is, for errors.

    Returns:
        The list, without hashes of the files; and the images in its order, which is that of the names: shape ``(images,
        height, width, channels)``.

    Raises:
        DataError: if there is no image, or a name occurs twice.
    """
    order = sorted(range(len(data.names)), key=data.names.__getitem__)
    names = [data.names[row] for row in order]
    if not names:
        raise DataError(f"{site}: the public set has no image")
    for earlier, later in pairwise(names):
        if earlier == later:
            raise DataError(f"{site}: public image {later!r} is named twice; name each image once")
    # Manifests are sorted as a rule, and then the decoded images need not be copied out of their file.
    images = data.images if order == list(range(len(order))) else data.images[np.array(order)]
    entries = (PublicImage(name, "", _digest(image)) for name, image in zip(names, images, strict=True))
    return PublicSet(tuple(entries)), images


@torch.no_grad()
def predict_public(
    network: nn.Module,
    images: NDArray[np.uint8],
    rows: Indices,
    context: SiteContext,
    *,
    batch_size: int = 256,
    statistics: Statistics = "eval",
    content: Content = "probabilities",
) -> Tensor:
    """Predict the public images of an exchange.

    With ``eval`` a prediction does not depend on the other images of the batch: batches may be large on a GPU, and are
    smaller on a CPU, which is then faster. With ``batch`` it does, and a last batch of one image joins the one before.

    Args:
        network: in any mode; it is left in the mode it was in, parameters and running statistics unchanged.
        images: all public images, shape ``(images, height, width, channels)``, uint8.
        rows: which of them.
        context: of the task.
        batch_size: images in a batch, with ``eval`` at most.
        statistics: what batch norm uses: its running statistics, or those of the batch (RHFL).
        content: ``probabilities`` or ``logits``.

    Returns:
        Shape ``(len(rows), classes)`` on the CPU, in the order of ``rows``; float64 if the network is, else float32.
    """
    parts: list[Tensor] = []
    if statistics == "eval" and context.device.type == "cpu":
        batch_size = min(batch_size, CPU_BATCH)
    with _predicting(network, statistics, context) as predicting:
        for batch in _batches(rows, batch_size):
            context.check_abort()
            with context.autocast():
                logits = at_least_single(predicting(as_input(network, context.views(batch, "none", public=images))))
            parts.append(logits if content == "logits" else logits.softmax(dim=1))
    # One transfer: a copy after every batch would make the device wait.
    return torch.cat(parts).cpu()


def as_input(network: nn.Module, views: Tensor) -> Tensor:
    """Views of :meth:`SiteContext.views` in the precision of the network."""
    return views.to(next(network.parameters()).dtype)


@contextmanager
def _predicting(
    network: nn.Module, statistics: Statistics, context: SiteContext
) -> Iterator[Callable[[Tensor], Tensor]]:
    """Evaluation mode; batch norm may use the batch's statistics, and never changes its running ones."""
    if statistics == "eval":
        yield context.forward(folded_copy(network))
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


def _digest(image: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest()
