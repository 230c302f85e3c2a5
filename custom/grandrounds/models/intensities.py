"""Normalisation of intensities before a network's first layer, against differences between devices.

``standardised`` and ``spread``: A. Jimenez-Sanchez et al., "Memory-aware curriculum federated learning for breast cancer
classification", Computer Methods and Programs in Biomedicine 229, 2023, standardise each image; the authors' code then
spreads the result over [-1, 1], which undoes the standardisation. ``imagenet`` is that of
torchvision's weights, ``efficientnet_lite`` that of the weights of EfficientNet-Lite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from grandrounds.protocol.problem import FixedIntensities

MIN_SPREAD = 1e-5
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def standardise(batch: Tensor) -> Tensor:
    r"""Give each image mean 0 and standard deviation 1, padding included.

    .. math:: y = \frac{x - \mu}{\max(\sigma, 10^{-5})}

    Images are floating point, shape ``(batch, channels, height, width)``, divided by 255 (others
    are a ``ValueError``); one of one level becomes zeros.

    Example:
        >>> standardise(torch.tensor([[[[0.0, 1.0]]]])).flatten().tolist()
        [-1.0, 1.0]
        >>> standardise(torch.full((1, 1, 1, 3), 0.3)).flatten().tolist()  # no contrast
        [0.0, 0.0, 0.0]
    """
    _require_images(batch)
    # The minimum first: the mean of many equal values is not exactly their value.
    raised = batch - batch.amin(dim=(1, 2, 3), keepdim=True)
    centred = raised - raised.mean(dim=(1, 2, 3), keepdim=True)
    spread = centred.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
    return centred / spread.clamp_min(MIN_SPREAD)


def spread_range(batch: Tensor) -> Tensor:
    r"""Spread each image over [-1, 1], as the authors' code does.

    .. math:: y = 2\,\frac{x - \min x}{\max x - \min x} - 1

    Floating point, shape ``(batch, channels, height, width)`` (else a ``ValueError``). An image of one
    level becomes zeros, where the authors' code divides by zero.

    Example:
        >>> spread_range(torch.tensor([[[[2.0, 3.0, 6.0]]]])).flatten().tolist()
        [-1.0, -0.5, 1.0]
        >>> spread_range(torch.ones(1, 1, 1, 2)).flatten().tolist()
        [0.0, 0.0]
    """
    _require_images(batch)
    low, high = (bound.view(-1, 1, 1, 1) for bound in batch.flatten(1).aminmax(dim=1))
    width = high - low
    return torch.where(width > 0, 2 * (batch - low) / width.clamp_min(torch.finfo(batch.dtype).tiny) - 1, 0.0)


def as_imagenet(batch: Tensor) -> Tensor:
    """Normalise by the mean and standard deviation of ImageNet's channels.

    Shape ``(batch, 3, height, width)``: red, green and blue in floating point, divided by 255 (else a ``ValueError``).

    Example:
        >>> as_imagenet(torch.tensor([0.714, 0.456, 0.181]).view(1, 3, 1, 1)).flatten()
        tensor([ 1.0000,  0.0000, -1.0000])
    """
    _require_images(batch)
    if batch.shape[1] != len(IMAGENET_MEAN):
        raise ValueError(f"intensities=imagenet needs images of three channels, got {batch.shape[1]}")
    mean, deviation = (batch.new_tensor(values).view(1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_DEVIATION))
    return (batch - mean) / deviation


def as_efficientnet_lite(batch: Tensor) -> Tensor:
    """Normalise as EfficientNet-Lite was trained: ``(255 x - 127) / 128``, floating point ``(batch, channels, h, w)``.

    Example:
        >>> as_efficientnet_lite(torch.tensor([0.0, 127 / 255, 1.0]).view(1, 3, 1, 1)).flatten()
        tensor([-0.9922,  0.0000,  1.0000])
    """
    _require_images(batch)
    return (batch * 255 - 127) / 128


def _require_images(batch: Tensor) -> None:
    if batch.dim() != 4 or not batch.is_floating_point():
        raise ValueError(
            f"expected floating point (batch, channels, height, width), got {batch.dtype} {tuple(batch.shape)}"
        )


NORMALISATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "standardised": standardise,
    "spread": spread_range,
    "imagenet": as_imagenet,
    "efficientnet_lite": as_efficientnet_lite,
}


def set_intensities(network: nn.Module, intensities: FixedIntensities) -> None:
    """Normalise every batch of images before a network's first layer, in training and in evaluation.

    It is a hook and not a layer: weights keep their names, and a network that is split has it before its encoder.

    ``scaled`` leaves images in [0, 1], ``standardised`` is :func:`standardise`, ``spread`` is :func:`spread_range`,
    ``imagenet`` is :func:`as_imagenet`, ``efficientnet_lite`` is :func:`as_efficientnet_lite`.

    Example:
        >>> network = nn.Identity()
        >>> set_intensities(network, "standardised")
        >>> network(torch.tensor([[[[0.25, 0.75]]]])).flatten().tolist()
        [-1.0, 1.0]
    """
    if intensities != "scaled":
        normalise = NORMALISATIONS[intensities]
        # No closure, so that a network can be copied and pickled.
        network.register_forward_pre_hook(partial(_normalised, normalise))


def _normalised(normalise: Callable[[Tensor], Tensor], _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (normalise(inputs[0]), *inputs[1:])
