"""Residual networks for small images: CompactNet, ResNet-10 and ResNet-12.

ResNets (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016) of basic blocks. Batch norms directly follow
their convolutions in one ``nn.Sequential``, so that they can be folded into them.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

COMPACT_STEM_WIDTH = 16
COMPACT_WIDTHS = (32, 64, 96)
WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside the input, or beside a 1x1 convolution of it where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, images: Tensor) -> Tensor:
        """Map ``(batch, channels_in, h, w)`` to ``(batch, channels_out, ceil(h / stride), ceil(w / stride))``."""
        return F.relu(self.residual(images) + self.shortcut(images), inplace=True)


class ResNet(nn.Module):
    """A 3x3 stem without pooling, basic blocks, global average, linear classifier.

    Args:
        classes: number of classes.
        channels: channels of the images.
        stem_width: channels after the stem.
        stem_stride: of the stem.
        blocks: output channels and stride of each block.
    """

    def __init__(
        self, classes: int, channels: int, stem_width: int, stem_stride: int, blocks: list[tuple[int, int]]
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, stem_width, 3, stem_stride, padding=1, bias=False),
            nn.BatchNorm2d(stem_width),
            nn.ReLU(inplace=True),
        )
        widths = [stem_width, *(width for width, _ in blocks)]
        self.blocks = nn.Sequential(
            *(BasicBlock(before, width, stride) for before, (width, stride) in zip(widths, blocks, strict=False))
        )
        self.classifier = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` of any size to logits ``(batch, classes)``."""
        features: Tensor = self.blocks(self.stem(images))
        logits: Tensor = self.classifier(features.mean(dim=(2, 3)))
        return logits


class CompactNet(ResNet):
    """A network for images of 32-96 pixels that trains from scratch on a CPU; the total stride is 16.

    The first block halves the size once more, so that no dense convolution works on a large map, and all widths are
    multiples of 16, which suits vector units. With 3 channels and 8 classes: 218,456 parameters and 10 million
    multiply-adds for an image of 64x64.
    """

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__(classes, channels, COMPACT_STEM_WIDTH, 2, [(width, 2) for width in COMPACT_WIDTHS])
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class ShallowResNet(ResNet):
    """A ResNet of four stages; the total stride is 8.

    As in RHFL (Fang & Ye, CVPR 2022), the stem keeps the size. With 3 channels and 13 classes ResNet-10 has 4,904,781 and
    ResNet-12 4,978,765 parameters. Two of the four networks of MDH-FL.

    Args:
        blocks: basic blocks of each stage.
    """

    def __init__(self, classes: int, channels: int, blocks: tuple[int, int, int, int]) -> None:
        stages = [
            (width, 2 if stage > 0 and block == 0 else 1)
            for stage, (width, count) in enumerate(zip(WIDTHS, blocks, strict=True))
            for block in range(count)
        ]
        super().__init__(classes, channels, WIDTHS[0], 1, stages)


class ResNet10(ShallowResNet):
    """One basic block in each stage."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__(classes, channels, (1, 1, 1, 1))


class ResNet12(ShallowResNet):
    """Two basic blocks in the first stage, one in each of the others."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__(classes, channels, (2, 1, 1, 1))
