"""Residual networks for small images: CompactNet, ResNet-9, ResNet-10 and ResNet-12.

ResNets (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016) of basic blocks. Batch norms directly follow
their convolutions in one ``nn.Sequential``, so that they can be folded into them.

ResNet-9 has neither normalisation nor biases and takes images of 32 pixels. It is the network with which FedMatch is
tested (Jeong et al., "Federated Semi-Supervised Learning with Inter-Client Consistency & Disjoint Learning", ICLR 2021)
and with it the proof of concept of FedPerl (Bdair et al., MELBA 2022, Table 1). It has no batch statistics, and its
nine kernels give 18 features of similarity. With 3 channels and 10 classes: 6,568,640 weights.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

COMPACT_STEM_WIDTH = 16
COMPACT_WIDTHS = (32, 64, 96)
RESNET_WIDTHS = (64, 128, 256, 512)


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

    ``blocks`` are the output channels and the stride of each block.
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
        return self.classifier(features.mean(dim=(2, 3)))


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
    """

    def __init__(self, classes: int, channels: int, blocks: tuple[int, int, int, int]) -> None:
        stages = [
            (width, 2 if stage > 0 and block == 0 else 1)
            for stage, (width, count) in enumerate(zip(RESNET_WIDTHS, blocks, strict=True))
            for block in range(count)
        ]
        super().__init__(classes, channels, RESNET_WIDTHS[0], 1, stages)


class ResNet10(ShallowResNet):
    """One basic block in each stage."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__(classes, channels, (1, 1, 1, 1))


class ResNet12(ShallowResNet):
    """Two basic blocks in the first stage, one in each of the others."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__(classes, channels, (2, 1, 1, 1))


# FedMatch starts from two parts that are added, sigma and psi = 0.2 sigma.
INITIAL_SCALE = 1.2
# Standard deviation of a standard normal variable that is cut at two deviations.
TRUNCATED_DEVIATION = 0.87962566103423978
CUT = 2.0


class Residual(nn.Sequential):
    """Layers whose output is added to their input."""

    def forward(self, maps: Tensor) -> Tensor:
        """Map ``(batch, channels, h, w)`` to the same shape."""
        result = maps
        for layer in self:
            result = layer(result)
        return maps + result


class ResNet9(nn.Module):
    """Six 3x3 convolutions, two residual pairs of them, maximum over positions, linear classifier; the stride is 8."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(channels, 64), _convolution(64, 128), nn.MaxPool2d(2))
        self.residual1 = Residual(_convolution(128, 128), _convolution(128, 128))
        self.middle = nn.Sequential(_convolution(128, 256), nn.MaxPool2d(2), _convolution(256, 512), nn.MaxPool2d(2))
        self.residual2 = Residual(_convolution(512, 512), _convolution(512, 512))
        self.classifier = nn.Linear(512, classes, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                _initialise(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` to logits ``(batch, classes)``.

        Images of 32 pixels end in maps of 4x4, over which the published network takes the maximum; so do others here.
        """
        features: Tensor = self.residual2(self.middle(self.residual1(self.stem(images))))
        return self.classifier(F.adaptive_max_pool2d(features, 1).flatten(1))


def _convolution(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False), nn.ReLU(inplace=True))


def _initialise(weight: Tensor) -> None:
    r"""Draw from a truncated normal of standard deviation :math:`1.2 / \sqrt{\text{fan-in}}`, in place."""
    fan_in = weight[0].numel()
    # The deviation before cutting, so that it is as wanted after it.
    deviation = INITIAL_SCALE / math.sqrt(fan_in) / TRUNCATED_DEVIATION
    nn.init.trunc_normal_(weight, std=deviation, a=-CUT * deviation, b=CUT * deviation)
