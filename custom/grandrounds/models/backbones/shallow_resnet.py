"""ResNet-10 and ResNet-12, for small images.

ResNets (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, basic blocks) with one block per stage, and
one more in the first stage of ResNet-12, as in RHFL (Fang & Ye, CVPR 2022): a 3x3 stem that keeps the size, no pooling after
it. Two of the four networks of MDH-FL. With 3 channels and 13 classes: 4,904,781 and 4,978,765 parameters.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

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


class ShallowResNet(nn.Module):
    """Stem, four stages of basic blocks, global average, linear classifier; the total stride is 8.

    Args:
        classes: number of classes.
        channels: channels of the images.
        blocks: basic blocks of each stage.
    """

    def __init__(self, classes: int, channels: int, blocks: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False),
            nn.BatchNorm2d(WIDTHS[0]),
            nn.ReLU(inplace=True),
        )
        stages: list[nn.Module] = []
        before = WIDTHS[0]
        for stage, (width, count) in enumerate(zip(WIDTHS, blocks, strict=True)):
            for block in range(count):
                stages.append(BasicBlock(before, width, stride=2 if stage > 0 and block == 0 else 1))
                before = width
        self.blocks = nn.Sequential(*stages)
        self.classifier = nn.Linear(before, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` of any size to logits ``(batch, classes)``."""
        features: Tensor = self.blocks(self.stem(images))
        logits: Tensor = self.classifier(features.mean(dim=(2, 3)))
        return logits


class ResNet10(ShallowResNet):
    """One basic block in each stage."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__(classes, channels, (1, 1, 1, 1))


class ResNet12(ShallowResNet):
    """Two basic blocks in the first stage, one in each of the others."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__(classes, channels, (2, 1, 1, 1))
