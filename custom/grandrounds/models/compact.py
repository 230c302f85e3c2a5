"""A small residual network that trains from scratch on a CPU.

A ResNet (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, basic blocks) cut to images of 32-96
pixels: the first block halves the size once more, so that no dense convolution works on a large map, and all widths are
multiples of 16, which suits vector units. With 3 channels and 8 classes: 218,456 parameters and 10 million
multiply-adds for an image of 64x64.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

STEM_WIDTH = 16
WIDTHS = (32, 64, 96)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a 1x1 shortcut; halves height and width.

    The batch norms directly follow their convolutions in one ``nn.Sequential``, so that they can be folded into them.
    """

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 1, stride=2, bias=False), nn.BatchNorm2d(channels_out)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map ``(batch, channels_in, h, w)`` to ``(batch, channels_out, ceil(h / 2), ceil(w / 2))``."""
        return F.relu(self.residual(images) + self.shortcut(images), inplace=True)


class CompactNet(nn.Module):
    """Stem, three residual blocks, global average, linear classifier; the total stride is 16.

    Args:
        classes: number of classes.
        channels: channels of the images.
    """

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, STEM_WIDTH, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(STEM_WIDTH),
            nn.ReLU(inplace=True),
        )
        widths = (STEM_WIDTH, *WIDTHS)
        self.blocks = nn.Sequential(
            *(ResidualBlock(before, after) for before, after in zip(widths, WIDTHS, strict=False))
        )
        self.classifier = nn.Linear(WIDTHS[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` to logits ``(batch, classes)``."""
        features: Tensor = self.blocks(self.stem(images))
        logits: Tensor = self.classifier(features.mean(dim=(2, 3)))
        return logits
