"""What a network looks at.

Grad-CAM shows where in an image a network finds the evidence for its prediction, for any backbone:
Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-Based Localization", ICCV 2017. The
score whose gradient is taken is the difference of two logits. The probability, which Fed-Align-CL's code takes, has
almost no gradient where the network is certain.

MONAI's ``GradCAM`` gives the same maps where it runs. It fails on networks that work in place after their last maps
(``densenet121``, ``resnet22``) and on frozen weights; it mixes the classes of a batch, and its hooks stay in the network.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from grandrounds.models.depths import DepthNetwork
from grandrounds.models.inference.forward import Forward


def class_activation(network: nn.Module, layers: Sequence[nn.Module], images: Tensor, positive: int = 1) -> Tensor:
    r"""Grad-CAM of layers for one class against all others, in the size of the images.

    Each channel :math:`A^k` of a layer's maps counts by how much it raises the score :math:`s`; layers are added:

    .. math:: \mathrm{ReLU}\Big( \sum_k \Big[ \frac{1}{hw} \sum_{xy} \frac{\partial s}{\partial A^k_{xy}} \Big] A^k \Big)

    A layer's gradient is that of what the head reads from it, not of what the later ones of these layers make of it.

    Args:
        network: images to logits, in evaluation mode; neither its weights nor their gradients change.
        layers: parts of it that are passed once and give maps, for example the last stage.
        images: shape ``(batch, channels, height, width)``.
        positive: the class; the score is its logit less the log-sum-exp of the others, with two classes the difference of
            the logits.

    Returns:
        Shape ``(batch, height, width)``, each image's map scaled to a maximum of one (zero without any evidence).

    Raises:
        ValueError: if the network is in training mode, or does not pass each layer once.
    """
    if network.training:
        raise ValueError(
            "the network must be in evaluation mode: in training mode images of a batch depend on each other"
        )
    caught: list[Tensor] = []

    def catch(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Keep the layer's output, and let the rest of the network go on from it."""
        # A leaf of its own, so that a gradient exists where no weight asks for one; a copy goes on, as the rest of the
        # network may work in place.
        caught.append(output.detach().requires_grad_())
        return caught[-1].clone()

    hooks = [layer.register_forward_hook(catch) for layer in layers]
    try:
        with torch.enable_grad():
            logits: Tensor = network(images)
            others = [index for index in range(logits.shape[1]) if index != positive]
            score = (logits[:, positive] - logits[:, others].logsumexp(dim=1)).sum()
    finally:
        for hook in hooks:
            hook.remove()
    if len(caught) != len(layers):
        raise ValueError(f"the network must pass the layer once, got {len(caught) / len(layers):g} times")
    activation = images.new_zeros(len(images), 1, *images.shape[2:])
    for maps, gradients in zip(caught, torch.autograd.grad(score, caught), strict=True):
        evidence = F.relu((gradients.mean(dim=(2, 3), keepdim=True) * maps.detach()).sum(dim=1, keepdim=True))
        activation = activation + F.interpolate(evidence, images.shape[2:], mode="bilinear", align_corners=False)
    largest = activation.amax(dim=(1, 2, 3), keepdim=True)
    return torch.where(largest > 0, activation / largest, activation)[:, 0]


def last_maps(network: nn.Module, image: Tensor) -> nn.Module:
    """The last part of a network that gives maps for an image ``(1, channels, h, w)``, before they are pooled into features.

    Raises:
        ValueError: if no part gives maps.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
        >>> last_maps(network, torch.zeros(1, 1, 4, 4))
        ReLU()
    """
    layers: list[nn.Module] = []

    def note(module: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        """Remember a layer whose output is maps."""
        if isinstance(output, Tensor) and output.dim() == 4 and output.shape[2] * output.shape[3] > 1:
            layers.append(module)

    hooks = [part.register_forward_hook(note) for part in network.modules() if part is not network]
    try:
        with torch.no_grad():
            network(image)
    finally:
        for hook in hooks:
            hook.remove()
    if not layers:
        raise ValueError(f"{type(network).__name__} has no part that gives maps of more than one position")
    return layers[-1]


def prediction_maps(network: nn.Module, images: Tensor) -> NDArray[np.float32]:
    """Grad-CAM of each image's predicted class against all others, shape ``(batch, height, width)``, in [0, 1].

    It is that of the last maps. A head on several depths reads further ones, and the maps of all depths are added. What it
    reads from their deviations is not shown: the mean over positions of a deviation's gradient is 0.

    Raises:
        ValueError: if the network is in training mode or has no maps.
    """
    read = network.read_layers if isinstance(network, DepthNetwork) else []
    layers = read or [last_maps(network, images[:1])]
    predicted = Forward(network)(images).argmax(dim=1)
    maps = torch.zeros(len(images), *images.shape[2:])
    for number in sorted(set(predicted.tolist())):
        own = predicted == number
        maps[own] = class_activation(network, layers, images[own], int(number))
    return maps.numpy()
