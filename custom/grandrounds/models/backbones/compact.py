"""A small residual network that trains from scratch on a CPU.

A ResNet (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, basic blocks) cut to images of 32-96
pixels: the first block halves the size once more, so that no dense convolution works on a large map, and all widths are
multiples of 16, which suits vector units. With 3 channels and 8 classes: 218,456 parameters and 10 million
multiply-adds for an image of 64x64.
"""

from __future__ import annotations

from torch import Tensor, nn

from grandrounds.models.backbones.shallow_resnet import BasicBlock

STEM_WIDTH = 16
WIDTHS = (32, 64, 96)


class CompactNet(nn.Module):
    """Stem, three residual blocks that halve the size, global average, linear classifier; the total stride is 16.

    The batch norms directly follow their convolutions in one ``nn.Sequential``, so that they can be folded into them.

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
            *(BasicBlock(before, after, stride=2) for before, after in zip(widths, WIDTHS, strict=False))
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
