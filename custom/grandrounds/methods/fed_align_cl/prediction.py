"""Which training images a model has right, of which the curriculum's memory is made, and whether it can take them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.errors import DataError
from grandrounds.methods.fed_align_cl.curriculum import Flags
from grandrounds.models.split import find_stem


@torch.no_grad()
def correct_predictions(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Flags:
    """Predict in evaluation mode and compare with the labels.

    Args:
        network: images to logits, in any mode; it is left in the mode it was in.
        batches: images and labels; large ones are as good as small ones, since each image is treated by itself.

    Returns:
        Shape ``(images,)``, in the order of the batches; equal logits count for the first class.
    """
    was_training = network.training
    network.eval()
    try:
        found = [(network(images).argmax(dim=1) == labels).cpu().numpy() for images, labels in batches]
    finally:
        network.train(was_training)
    return np.concatenate(found) if found else np.zeros(0, np.bool_)


def require_channels(channels: int, network: nn.Module, site: str) -> None:
    """Check that images have the channels that the network takes.

    Args:
        channels: of the images.
        network: whose first convolution takes them.
        site: how the error calls the hospital.

    Raises:
        DataError: if they have others.
    """
    expected = find_stem(network)[1].in_channels
    if channels != expected:
        raise DataError(
            f"{site}: images have {channels} channels and the network takes {expected}; set problem.channels to what the "
            "images have, or convert them"
        )
