"""Joined encoders: EfficientNet-Lite0 beside ResNet-50-thin, both frozen, with one head."""

from __future__ import annotations

from torch import nn

import grandrounds as gr
from grandrounds.models.backbones.efficientnet_lite0 import EfficientNetLite0
from grandrounds.models.intensities import as_efficientnet_lite
from joined_encoders.joined import Branch, JoinedEncoders
from joined_encoders.resnet50_thin import as_open_nsfw, resnet50_thin

__all__ = [
    "BACKBONE",
    "Branch",
    "JoinedEncoders",
    "lite0_branch",
    "lite0_resnet50_thin",
    "resnet50_thin",
    "resnet50_thin_branch",
]

BACKBONE, SIDE = "lite0_resnet50_thin", 224
LITE0_TAPS, RESNET_TAPS = (5, 8, 11, 15), (7, 13)


def lite0_branch(side: int) -> Branch:
    """EfficientNet-Lite0 for images of a side: its stem, then its 16 blocks."""
    network = EfficientNetLite0(1, 3)
    return Branch([network.stem, *network.blocks], side, as_efficientnet_lite, LITE0_TAPS)


def resnet50_thin_branch(side: int) -> Branch:
    """ResNet-50-thin for images of a side, which is a multiple of 32."""
    return Branch(resnet50_thin(), side, as_open_nsfw, RESNET_TAPS)


@gr.register_backbone(BACKBONE, stride=32, side=SIDE)
def lite0_resnet50_thin(classes: int, channels: int) -> nn.Module:
    """EfficientNet-Lite0 at 112 pixels beside ResNet-50-thin at 224, see :mod:`joined_encoders.resnet50_thin`.

    It is no default: the second network was made to recognise pornographic images.

    Raises:
        ValueError: for other images than those of three channels.
    """
    if channels != 3:
        raise ValueError(f"{BACKBONE} takes colour images alone, got {channels} channel(s)")
    return JoinedEncoders({"lite0": lite0_branch(112), "resnet50_thin": resnet50_thin_branch(SIDE)}, classes)
