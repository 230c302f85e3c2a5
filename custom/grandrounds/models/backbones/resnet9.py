"""ResNet-9 without normalisation and without biases, for images of 32 pixels.

The network with which FedMatch is tested (Jeong et al., "Federated Semi-Supervised Learning with Inter-Client Consistency
& Disjoint Learning", ICLR 2021) and with it the proof of concept of FedPerl (Bdair et al., MELBA 2022, Table 1). It has no
batch statistics, and its nine kernels give 18 features of similarity. With 3 channels and 10 classes: 6,568,640 weights.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

# FedMatch starts from two parts that are added, sigma and psi = 0.2 sigma.
INITIAL_SCALE = 1.2
# Standard deviation of a standard normal variable that is cut at two deviations.
TRUNCATED_DEVIATION = 0.87962566103423978
CUT = 2.0


class ResNet9(nn.Module):
    """Six 3x3 convolutions, two residual pairs of them, maximum over positions, linear classifier; the stride is 8.

    Args:
        classes: number of classes.
        channels: channels of the images.
    """

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(channels, 64), _convolution(64, 128), nn.MaxPool2d(2))
        self.residual1 = nn.Sequential(_convolution(128, 128), _convolution(128, 128))
        self.middle = nn.Sequential(_convolution(128, 256), nn.MaxPool2d(2), _convolution(256, 512), nn.MaxPool2d(2))
        self.residual2 = nn.Sequential(_convolution(512, 512), _convolution(512, 512))
        self.classifier = nn.Linear(512, classes, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                _initialise(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` to logits ``(batch, classes)``.

        Images of 32 pixels end in maps of 4x4, over which the published network takes the maximum; so do others here.
        """
        features: Tensor = self.stem(images)
        features = self.middle(features + self.residual1(features))
        features = features + self.residual2(features)
        logits: Tensor = self.classifier(F.adaptive_max_pool2d(features, 1).flatten(1))
        return logits


def _convolution(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False), nn.ReLU(inplace=True))


def _initialise(weight: Tensor) -> None:
    r"""Draw from a truncated normal of standard deviation :math:`1.2 / \sqrt{\text{fan-in}}`, in place."""
    fan_in = weight[0].numel()
    # The deviation before cutting, so that it is as wanted after it.
    deviation = INITIAL_SCALE / math.sqrt(fan_in) / TRUNCATED_DEVIATION
    nn.init.trunc_normal_(weight, std=deviation, a=-CUT * deviation, b=CUT * deviation)
