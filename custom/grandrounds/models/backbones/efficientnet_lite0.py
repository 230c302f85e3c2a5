"""EfficientNet-Lite0: EfficientNet-B0 without squeeze-and-excitation and with ReLU6, for devices without a GPU.

Tan & Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019; the Lite variants are those
of Google's TPU repository. Padding is TensorFlow's SAME: a convolution of stride 2 on an even side pads the right and the
bottom only. Symmetric padding would shift the published features by half a pixel at each of these convolutions.

With 1000 classes: 4,652,008 parameters; without the classifier 3,371,008.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grandrounds.models.backbones.mobile import InvertedResidual, Stage, staged

NORM_EPSILON = 1e-3
NORM_MOMENTUM = 0.01
LITE0_STEM_WIDTH = 32
LAST_WIDTH = 1280
LITE0_DROPOUT = 0.2
STAGES = (
    Stage(1, 3, 1, 16, 1), Stage(6, 3, 2, 24, 2), Stage(6, 5, 2, 40, 2), Stage(6, 3, 2, 80, 3), Stage(6, 5, 1, 112, 3),
    Stage(6, 5, 2, 192, 4), Stage(6, 3, 1, 320, 1),
)  # fmt: skip
LAYERS: Mapping[str, int] = {
    "_expand_conv": 0, "_bn0": 1, "_depthwise_conv": 3, "_bn1": 4, "_project_conv": 6, "_bn2": 7,
}  # fmt: skip
OUTSIDE: Mapping[str, str] = {
    "_conv_stem": "stem.0", "_bn0": "stem.1", "_conv_head": "widen.0", "_bn1": "widen.1", "_fc": "classifier.1",
}  # fmt: skip


class SameConv2d(nn.Conv2d):
    """A convolution without bias whose padding is TensorFlow's SAME; the kernel is odd and square."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        # With stride 1 SAME is symmetric for odd kernels.
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(channels_in, channels_out, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """Map ``(batch, channels_in, h, w)`` to ``(batch, channels_out, ceil(h / stride), ceil(w / stride))``."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride == 1:
            return super().forward(input)
        # -side modulo stride, by positive numbers: what a tracer records rounds quotients of negative ones to zero.
        short = [(stride - 1) * side % stride for side in input.shape[2:]]
        if stride > 2 or torch.is_grad_enabled() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            rows, columns = (kernel - stride + missing for missing in short)
            input = F.pad(input, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
            return super().forward(input)
        # A zero in front of an even side's kernel, between equal paddings, has the same result to the bit and copies no map.
        weight = F.pad(self.weight, (1 - short[1], 0, 1 - short[0], 0))
        return F.conv2d(input, weight, self.bias, stride, kernel // 2, groups=self.groups)


class EfficientNetLite0(nn.Module):
    """Stem, seven stages of 16 inverted residuals, 1x1 convolution, global average, dropout and classifier; stride 32."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_activated(SameConv2d(channels, LITE0_STEM_WIDTH, 3, stride=2)))
        self.blocks = staged(LITE0_STEM_WIDTH, STAGES, _lite_block)
        self.widen = nn.Sequential(*_activated(SameConv2d(STAGES[-1].width, LAST_WIDTH, 1)))
        self.classifier = nn.Sequential(nn.Dropout(LITE0_DROPOUT), nn.Linear(LAST_WIDTH, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` of any size to logits ``(batch, classes)``."""
        features: Tensor = self.widen(self.blocks(self.stem(images)))
        return self.classifier(features.mean(dim=(2, 3)))


def published_name(name: str) -> str:
    """Our name of an entry of the published file; names of other files stay as they are.

    Example:
        >>> published_name("_blocks.0._depthwise_conv.weight"), published_name("_blocks.3._bn0.bias")
        ('blocks.0.residual.0.weight', 'blocks.3.residual.1.bias')
        >>> published_name("_fc.weight")
        'classifier.1.weight'
    """
    layer, _, entry = name.rpartition(".")
    if layer in OUTSIDE:
        return f"{OUTSIDE[layer]}.{entry}"
    match = re.fullmatch(r"_blocks\.(\d+)\.(\w+)", layer)
    if match is None or match[2] not in LAYERS:
        return name
    # The first block has no expansion, which is three layers.
    position = LAYERS[match[2]] - (3 if match[1] == "0" else 0)
    return f"blocks.{match[1]}.residual.{position}.{entry}"


def _lite_block(channels_in: int, channels_out: int, expansion: int, kernel: int, stride: int) -> InvertedResidual:
    """A block without the first convolution where nothing is expanded, with a shortcut where shapes are equal."""
    inside = expansion * channels_in
    layers = [
        *(_activated(SameConv2d(channels_in, inside, 1)) if expansion > 1 else ()),
        *_activated(SameConv2d(inside, inside, kernel, stride, groups=inside)),
        SameConv2d(inside, channels_out, 1),
        _norm(channels_out),
    ]
    return InvertedResidual(layers, nn.Identity() if stride == 1 and channels_in == channels_out else None)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, NORM_EPSILON, NORM_MOMENTUM)


def _activated(convolution: nn.Conv2d) -> tuple[nn.Conv2d, nn.BatchNorm2d, nn.ReLU6]:
    return convolution, _norm(convolution.out_channels), nn.ReLU6(inplace=True)
