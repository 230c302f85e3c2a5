"""Where in each image a network finds the evidence for its prediction: Grad-CAM of its last maps, for any backbone."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.evaluation.grad_cam import class_activation


def last_maps(network: nn.Module, image: Tensor) -> nn.Module:
    """The last child of a network that gives maps, before they are pooled into features.

    Args:
        network: images to logits; its children are passed one after the other.
        image: shape ``(1, channels, height, width)``.

    Raises:
        ValueError: if no child gives maps.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
        >>> last_maps(network, torch.zeros(1, 1, 4, 4))
        ReLU()
    """
    found: list[nn.Module] = []

    def note(module: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        """Remember a layer whose output is maps."""
        if output.dim() == 4 and output.shape[2] * output.shape[3] > 1:
            found.append(module)

    hooks = [child.register_forward_hook(note) for child in network.children()]
    try:
        with torch.no_grad():
            network(image)
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        raise ValueError(f"{type(network).__name__} has no part that gives maps of more than one place")
    return found[-1]


def prediction_maps(network: nn.Module, images: Tensor) -> NDArray[np.float32]:
    """Grad-CAM of each image's predicted class against all others.

    Args:
        network: images to logits, in evaluation mode.
        images: at least one, shape ``(batch, channels, height, width)``.

    Returns:
        Shape ``(batch, height, width)``, in [0, 1].

    Raises:
        ValueError: if the network is in training mode or has no maps.
    """
    layer = last_maps(network, images[:1])
    with torch.no_grad():
        predicted = network(images).argmax(dim=1)
    maps = torch.zeros(len(images), *images.shape[2:])
    for number in predicted.unique().tolist():
        own = predicted == number
        maps[own] = class_activation(network, layer, images[own], int(number)).detach()
    return maps.numpy()
