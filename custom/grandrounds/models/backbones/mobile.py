"""ShuffleNet and MobileNetV2 for small images, as changed by RHFL (Fang & Ye, CVPR 2022); two of MDH-FL's four networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Stage(NamedTuple):
    """Blocks of one width: ``expansion`` is of the channels inside, ``stride`` is the first block's."""

    expansion: int
    kernel: int
    stride: int
    width: int
    blocks: int


class InvertedResidual(nn.Module):
    """1x1 convolution to more channels, depthwise convolution, linear 1x1 convolution, and a shortcut where there is one.

    Args:
        layers: of the residual.
        shortcut: what the input passes before it is added; None for no shortcut.
    """

    def __init__(self, layers: Iterable[nn.Module], shortcut: nn.Module | None) -> None:
        super().__init__()
        self.residual = nn.Sequential(*layers)
        self.shortcut = shortcut

    def forward(self, maps: Tensor) -> Tensor:
        """Map ``(batch, channels_in, h, w)`` to ``(batch, channels_out, ceil(h / stride), ceil(w / stride))``."""
        result: Tensor = self.residual(maps)
        return result if self.shortcut is None else result + self.shortcut(maps)


def staged(
    channels: int, stages: Sequence[Stage], block: Callable[[int, int, int, int, int], InvertedResidual]
) -> nn.Sequential:
    """The blocks of all stages, one after the other.

    Args:
        channels: of the input.
        stages: in order.
        block: from channels in and out, expansion, kernel and stride to a block.
    """
    blocks: list[nn.Module] = []
    for stage in stages:
        for number in range(stage.blocks):
            stride = stage.stride if number == 0 else 1
            blocks.append(block(channels, stage.width, stage.expansion, stage.kernel, stride))
            channels = stage.width
    return nn.Sequential(*blocks)


SHUFFLE_GROUPS = 2
SHUFFLE_STEM_WIDTH = 24
SHUFFLE_WIDTHS = (200, 400, 800)
SHUFFLE_UNITS = (4, 8, 4)
BOTTLENECK = 4
MOBILE_STEM_WIDTH = 32
MOBILE_LAST_WIDTH = 1280


class GroupShuffle(nn.ChannelShuffle):
    """Channels of all groups in turn, as torch's layer, in operators that other formats have when it is traced."""

    def forward(self, input: Tensor) -> Tensor:
        """Map ``(batch, channels, h, w)`` to the same shape."""
        if not torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            return super().forward(input)
        batch, channels, *sides = input.shape
        grouped = input.reshape(batch, self.groups, channels // self.groups, *sides)
        return grouped.transpose(1, 2).reshape(batch, channels, *sides)


class ShuffleUnit(nn.Module):
    """Grouped 1x1 convolution, shuffle of the groups, depthwise 3x3 convolution, grouped 1x1 convolution.

    With a stride of two, the average-pooled input is concatenated with the result instead of added to it.

    With a stride of one, the numbers of channels must be equal.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int, groups_in: int) -> None:
        super().__init__()
        self.halves = stride == 2
        width_out = channels_out - channels_in if self.halves else channels_out
        width = width_out // BOTTLENECK
        self.reduce = nn.Sequential(
            *_normalised(nn.Conv2d(channels_in, width, 1, groups=groups_in, bias=False)), nn.ReLU(inplace=True)
        )
        self.shuffle = GroupShuffle(groups_in)
        self.expand = nn.Sequential(
            *_normalised(nn.Conv2d(width, width, 3, stride, padding=1, groups=width, bias=False)),
            nn.ReLU(inplace=True),
            *_normalised(nn.Conv2d(width, width_out, 1, groups=SHUFFLE_GROUPS, bias=False)),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map ``(batch, channels_in, h, w)`` to ``(batch, channels_out, ceil(h / stride), ceil(w / stride))``."""
        result = self.expand(self.shuffle(self.reduce(images)))
        if self.halves:
            pooled = F.avg_pool2d(images, 3, stride=2, padding=1)
            return F.relu(torch.cat([result, pooled], dim=1), inplace=True)
        return F.relu(result + images, inplace=True)


class ShuffleNet(nn.Module):
    """Stem, three stages of shuffle units with two groups, global average, linear classifier; the total stride is 8.

    Zhang, Zhou, Lin & Sun, "ShuffleNet: An Extremely Efficient Convolutional Neural Network for Mobile Devices", CVPR 2018,
    with RHFL's changes: a 1x1 stem that keeps the size, no pooling after it, widths 200, 400, 800, and a ReLU after the
    depthwise convolution. With 3 channels and 13 classes: 889,985 parameters.
    """

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *_normalised(nn.Conv2d(channels, SHUFFLE_STEM_WIDTH, 1, bias=False)), nn.ReLU(inplace=True)
        )
        units: list[nn.Module] = []
        before = SHUFFLE_STEM_WIDTH
        for width, count in zip(SHUFFLE_WIDTHS, SHUFFLE_UNITS, strict=True):
            # The stem has too few channels for groups.
            units.append(ShuffleUnit(before, width, 2, groups_in=1 if before == SHUFFLE_STEM_WIDTH else SHUFFLE_GROUPS))
            units.extend(ShuffleUnit(width, width, 1, groups_in=SHUFFLE_GROUPS) for _ in range(count - 1))
            before = width
        self.units = nn.Sequential(*units)
        self.classifier = nn.Linear(before, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` of any size to logits ``(batch, classes)``."""
        features: Tensor = self.units(self.stem(images))
        return self.classifier(features.mean(dim=(2, 3)))


MOBILE_STAGES = (
    Stage(1, 3, 1, 16, 1), Stage(6, 3, 1, 24, 2), Stage(6, 3, 2, 32, 3), Stage(6, 3, 2, 64, 4), Stage(6, 3, 1, 96, 3),
    Stage(6, 3, 2, 160, 3), Stage(6, 3, 1, 320, 1),
)  # fmt: skip


class MobileNetV2(nn.Module):
    """Stem, seven stages of inverted residuals, 1x1 convolution, global average, classifier; the total stride is 8.

    Sandler, Howard, Zhu, Zhmoginov & Chen, "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018, with RHFL's
    changes: stem and second stage keep the size, a 1x1 convolution makes a shortcut where the channels change and the size
    does not, and ReLU is not cut at six. With 3 channels and 13 classes: 2,300,765 parameters.
    """

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *_normalised(nn.Conv2d(channels, MOBILE_STEM_WIDTH, 3, padding=1, bias=False)), nn.ReLU(inplace=True)
        )
        self.blocks = staged(MOBILE_STEM_WIDTH, MOBILE_STAGES, _mobile_block)
        self.widen = nn.Sequential(
            *_normalised(nn.Conv2d(MOBILE_STAGES[-1].width, MOBILE_LAST_WIDTH, 1, bias=False)), nn.ReLU(inplace=True)
        )
        self.classifier = nn.Linear(MOBILE_LAST_WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` of any size to logits ``(batch, classes)``."""
        features: Tensor = self.widen(self.blocks(self.stem(images)))
        return self.classifier(features.mean(dim=(2, 3)))


def _mobile_block(channels_in: int, channels_out: int, expansion: int, kernel: int, stride: int) -> InvertedResidual:
    """A block with a shortcut where the size stays; a 1x1 convolution makes it where the channels change."""
    inside = expansion * channels_in
    layers = [
        *_normalised(nn.Conv2d(channels_in, inside, 1, bias=False)),
        nn.ReLU(inplace=True),
        *_normalised(nn.Conv2d(inside, inside, kernel, stride, padding=kernel // 2, groups=inside, bias=False)),
        nn.ReLU(inplace=True),
        *_normalised(nn.Conv2d(inside, channels_out, 1, bias=False)),
    ]
    if stride > 1:
        return InvertedResidual(layers, None)
    changed = _normalised(nn.Conv2d(channels_in, channels_out, 1, bias=False)) if channels_in != channels_out else ()
    return InvertedResidual(layers, nn.Sequential(*changed))


def _normalised(convolution: nn.Conv2d) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    return convolution, nn.BatchNorm2d(convolution.out_channels)
