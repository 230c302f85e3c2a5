"""ResNet-22 for mammograms in full resolution, with the classifier of Fed-Align-CL.

The residual network of Wu et al., "Deep Neural Networks Improve Radiologists' Performance in Breast Cancer Screening", IEEE
TMI 2020: pre-activation blocks (He et al., "Identity Mappings in Deep Residual Networks", ECCV 2016), narrow and early
halved, so that 2048 x 2048 pixels fit. The classifier on top is that of Jiménez-Sánchez et al., "Memory-aware curriculum
federated learning for breast cancer classification", 2021; its first convolution is the 7x7 of the published weights, not
the 3x3 of the paper's table. With 1 channel and 2 classes: 2,799,536 + 41,666 parameters, and 11.85 billion multiply-adds
for an image of 2048 x 2048.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from grandrounds.errors import ConfigurationError
from grandrounds.models.norm import statistics_untouched

RESNET22_STEM_WIDTH = 16
RESNET22_WIDTHS = (16, 32, 64, 128, 256)
BLOCKS = 2
HEAD_WIDTHS = (128, 64)
HEAD_DROPOUT = 0.5
INPUT_NOISE = 0.01


class InputNoise(nn.Module):
    """Gaussian noise of a standard deviation on images in training mode.

    It is a module, so that its mode is set with the network's also where the network is split.
    """

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.deviation = deviation

    def forward(self, images: Tensor) -> Tensor:
        """Map images to images of the same shape."""
        return images + self.deviation * torch.randn_like(images) if self.training and self.deviation else images


class PreActivationBlock(nn.Module):
    """Norm, ReLU, 3x3 convolution, twice, beside a shortcut.

    The first block of a stage has a 1x1 convolution of the normalised, rectified input in the shortcut.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int, first: bool) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False) if first else None

    def forward(self, maps: Tensor) -> Tensor:
        """Map ``(batch, channels_in, h, w)`` to ``(batch, channels_out, ceil(h / stride), ceil(w / stride))``."""
        active = F.relu(self.norm1(maps), inplace=True)
        residual: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active)), inplace=True))
        return residual + (maps if self.shortcut is None else self.shortcut(active))


class ResNet22(nn.Module):
    """Stem, five stages of two blocks, global average, classifier of three layers; the total stride is 64.

    ``input_noise`` is the standard deviation of the Gaussian noise on images in training mode, their only augmentation; for
    ``recompute`` see :func:`recompute_activations`.
    """

    def __init__(self, classes: int, channels: int, input_noise: float = INPUT_NOISE) -> None:
        super().__init__()
        self.recompute = False
        self.noise = InputNoise(input_noise)
        self.stem = nn.Sequential(
            nn.Conv2d(channels, RESNET22_STEM_WIDTH, 7, stride=2, bias=False), nn.MaxPool2d(3, stride=2)
        )
        blocks: list[nn.Module] = []
        before = RESNET22_STEM_WIDTH
        for stage, width in enumerate(RESNET22_WIDTHS):
            for block in range(BLOCKS):
                blocks.append(PreActivationBlock(before, width, 2 if stage and not block else 1, first=not block))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(before)
        self.classifier = _classifier(before, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` of any size to logits ``(batch, classes)``."""
        maps = self.noise(images)
        for part in (self.stem, *self.blocks):
            maps = self._pass(part, maps)
        features = F.relu(self.norm(maps), inplace=True).mean(dim=(2, 3))
        return self.classifier(features)

    def _pass(self, part: nn.Module, maps: Tensor) -> Tensor:
        if not (self.recompute and torch.is_grad_enabled()):
            return part(maps)
        return checkpoint(part, maps, use_reentrant=False, context_fn=_contexts(part))


def recompute_activations(network: nn.Module, recompute: bool = True) -> None:
    """Recompute each block's activations in the backward pass instead of storing them; set it before a split.

    It costs a third more computation and saves most of the memory; gradients are the same.

    Raises:
        ConfigurationError: if the network is not a ResNet-22, the only one here for large images.
    """
    if not isinstance(network, ResNet22):
        raise ConfigurationError(f"recompute_activations: expected backbone resnet22, got {type(network).__name__}")
    network.recompute = recompute


def _contexts(part: nn.Module) -> Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
    # The second pass is over the same batch, which must not count twice in the running statistics.
    return lambda: (nullcontext(), statistics_untouched(part))


def _classifier(features: int, classes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in HEAD_WIDTHS:
        layers += [nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True), nn.Dropout(HEAD_DROPOUT)]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, classes))
