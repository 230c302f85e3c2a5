"""MobileNetV2 for small images.

Sandler, Howard, Zhu, Zhmoginov & Chen, "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018, with RHFL's
changes (Fang & Ye, CVPR 2022): stem and second stage keep the size, a 1x1 convolution makes a shortcut where the channels
change and the size does not, and ReLU is not cut at six. One of the four networks of MDH-FL. With 3 channels and 13 classes:
2,300,765 parameters.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn


class Stage(NamedTuple):
    """Blocks of one width: ``expansion`` is of the channels inside, ``stride`` is the first block's."""

    expansion: int
    width: int
    blocks: int
    stride: int


STEM_WIDTH = 32
LAST_WIDTH = 1280
STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 1),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """1x1 convolution to more channels, depthwise 3x3 convolution, linear 1x1 convolution; a shortcut without stride."""

    def __init__(self, channels_in: int, channels_out: int, expansion: int, stride: int) -> None:
        super().__init__()
        inside = expansion * channels_in
        self.residual = nn.Sequential(
            *_normalised(nn.Conv2d(channels_in, inside, 1, bias=False)),
            nn.ReLU(inplace=True),
            *_normalised(nn.Conv2d(inside, inside, 3, stride, padding=1, groups=inside, bias=False)),
            nn.ReLU(inplace=True),
            *_normalised(nn.Conv2d(inside, channels_out, 1, bias=False)),
        )
        self.has_shortcut = stride == 1
        self.shortcut = nn.Sequential()
        if self.has_shortcut and channels_in != channels_out:
            self.shortcut = nn.Sequential(*_normalised(nn.Conv2d(channels_in, channels_out, 1, bias=False)))

    def forward(self, images: Tensor) -> Tensor:
        """Map ``(batch, channels_in, h, w)`` to ``(batch, channels_out, ceil(h / stride), ceil(w / stride))``."""
        result: Tensor = self.residual(images)
        return result + self.shortcut(images) if self.has_shortcut else result


class MobileNetV2(nn.Module):
    """Stem, seven stages of inverted residuals, 1x1 convolution, global average, classifier; the total stride is 8.

    Args:
        classes: number of classes.
        channels: channels of the images.
    """

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *_normalised(nn.Conv2d(channels, STEM_WIDTH, 3, padding=1, bias=False)), nn.ReLU(inplace=True)
        )
        blocks: list[nn.Module] = []
        before = STEM_WIDTH
        for stage in STAGES:
            for block in range(stage.blocks):
                blocks.append(InvertedResidual(before, stage.width, stage.expansion, stage.stride if block == 0 else 1))
                before = stage.width
        self.blocks = nn.Sequential(*blocks)
        self.widen = nn.Sequential(*_normalised(nn.Conv2d(before, LAST_WIDTH, 1, bias=False)), nn.ReLU(inplace=True))
        self.classifier = nn.Linear(LAST_WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` of any size to logits ``(batch, classes)``."""
        features: Tensor = self.widen(self.blocks(self.stem(images)))
        logits: Tensor = self.classifier(features.mean(dim=(2, 3)))
        return logits


def _normalised(convolution: nn.Conv2d) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    return convolution, nn.BatchNorm2d(convolution.out_channels)
