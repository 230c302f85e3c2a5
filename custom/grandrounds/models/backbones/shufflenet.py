"""ShuffleNet with two groups, for small images.

Zhang, Zhou, Lin & Sun, "ShuffleNet: An Extremely Efficient Convolutional Neural Network for Mobile Devices", CVPR 2018, with
RHFL's changes (Fang & Ye, CVPR 2022): a 1x1 stem that keeps the size, no pooling after it, widths 200, 400, 800, and a ReLU
after the depthwise convolution. One of the four networks of MDH-FL. With 3 channels and 13 classes: 889,985 parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GROUPS = 2
STEM_WIDTH = 24
WIDTHS = (200, 400, 800)
UNITS = (4, 8, 4)
BOTTLENECK = 4


class ShuffleUnit(nn.Module):
    """Grouped 1x1 convolution, shuffle of the groups, depthwise 3x3 convolution, grouped 1x1 convolution.

    With a stride of two, the average-pooled input is put beside the result instead of added to it.

    Args:
        channels_in: channels of the input.
        channels_out: channels of the output, those of the pooled input included.
        stride: one or two; with one the channels must be equal.
        groups_in: groups of the first convolution.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int, groups_in: int) -> None:
        super().__init__()
        self.halves = stride == 2
        width_out = channels_out - channels_in if self.halves else channels_out
        width = width_out // BOTTLENECK
        self.reduce = nn.Sequential(
            nn.Conv2d(channels_in, width, 1, groups=groups_in, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        )
        self.shuffle = nn.ChannelShuffle(groups_in)
        self.expand = nn.Sequential(
            nn.Conv2d(width, width, 3, stride, padding=1, groups=width, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width_out, 1, groups=GROUPS, bias=False),
            nn.BatchNorm2d(width_out),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map ``(batch, channels_in, h, w)`` to ``(batch, channels_out, ceil(h / stride), ceil(w / stride))``."""
        result = self.expand(self.shuffle(self.reduce(images)))
        if self.halves:
            pooled = F.avg_pool2d(images, 3, stride=2, padding=1)
            return F.relu(torch.cat([result, pooled], dim=1), inplace=True)
        return F.relu(result + images, inplace=True)


class ShuffleNet(nn.Module):
    """Stem, three stages of shuffle units, global average, linear classifier; the total stride is 8.

    Args:
        classes: number of classes.
        channels: channels of the images.
    """

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, STEM_WIDTH, 1, bias=False), nn.BatchNorm2d(STEM_WIDTH), nn.ReLU(inplace=True)
        )
        units: list[nn.Module] = []
        before = STEM_WIDTH
        for width, count in zip(WIDTHS, UNITS, strict=True):
            # The stem has too few channels to be divided into groups.
            units.append(ShuffleUnit(before, width, 2, groups_in=1 if before == STEM_WIDTH else GROUPS))
            units.extend(ShuffleUnit(width, width, 1, groups_in=GROUPS) for _ in range(count - 1))
            before = width
        self.units = nn.Sequential(*units)
        self.classifier = nn.Linear(before, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` of any size to logits ``(batch, classes)``."""
        features: Tensor = self.units(self.stem(images))
        logits: Tensor = self.classifier(features.mean(dim=(2, 3)))
        return logits
