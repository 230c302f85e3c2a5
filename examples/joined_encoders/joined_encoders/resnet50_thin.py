"""ResNet-50-thin: a ResNet-50 (He et al., CVPR 2016) with half the channels and the stride in a block's first convolution.

Yahoo published its weights as open_nsfw (2016, BSD-2-Clause). They were trained on ImageNet and then to recognise
pornographic images; here only maps of its layers are read, and not its two classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

STEM_WIDTH = 64
STAGES = ((128, 3), (256, 4), (512, 6), (1024, 3))
"""Channels and number of blocks; each stage but the first halves the side."""
BGR_MEAN = (104.0, 117.0, 123.0)
"""Subtracted from blue, green and red in 0 to 255, as the weights were trained."""


class Bottleneck(nn.Module):
    """Three convolutions, whose norms are folded into them, beside a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        inside = channels_out // 4
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, inside, 1, stride),
            nn.ReLU(inplace=True),
            nn.Conv2d(inside, inside, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(inside, channels_out, 1),
        )
        self.shortcut = (
            nn.Identity() if channels_in == channels_out else nn.Conv2d(channels_in, channels_out, 1, stride)
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Map ``(batch, channels_in, h, w)`` to ``(batch, channels_out, h / stride, w / stride)``."""
        return torch.relu(self.residual(maps) + self.shortcut(maps))


def resnet50_thin(stages: Sequence[tuple[int, int]] = STAGES) -> list[nn.Module]:
    """The layers without the classifier: a stem, then a module for each block; the side must be a multiple of 32.

    Args:
        stages: channels and number of blocks of each.
    """
    # The pooling's windows begin at the first pixel and end beyond the last one.
    stem = (nn.Conv2d(3, STEM_WIDTH, 7, 2, 3), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True))
    layers: list[nn.Module] = [nn.Sequential(*stem)]
    width = STEM_WIDTH
    for stage, (channels, blocks) in enumerate(stages):
        for block in range(blocks):
            layers.append(Bottleneck(width, channels, 2 if stage and not block else 1))
            width = channels
    return layers


def as_open_nsfw(images: Tensor) -> Tensor:
    """Normalise as the weights were trained: red, green and blue in [0, 1] to blue, green and red around 0.

    Example:
        >>> as_open_nsfw(torch.tensor([1.0, 117 / 255, 0.0]).view(1, 3, 1, 1)).flatten().tolist()
        [-104.0, 0.0, 132.0]
    """
    return 255 * images.flip(1) - images.new_tensor(BGR_MEAN).view(1, 3, 1, 1)
