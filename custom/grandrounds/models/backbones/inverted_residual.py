"""The block of MobileNetV2 and EfficientNet (Sandler et al., CVPR 2018; Tan & Le, ICML 2019), and its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from torch import Tensor, nn


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
