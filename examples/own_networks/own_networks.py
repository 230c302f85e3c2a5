"""Two networks of other libraries as backbones: MONAI's DenseNet-121 and a MobileNetV3 of timm."""

from __future__ import annotations

from torch import nn

import grandrounds as gr


@gr.register_backbone("monai_densenet121", stride=32)
def monai_densenet121(classes: int, channels: int) -> nn.Module:
    """MONAI's DenseNet-121 for two-dimensional images, with random weights."""
    from monai.networks.nets import DenseNet121

    return DenseNet121(spatial_dims=2, in_channels=channels, out_channels=classes)


@gr.register_backbone("timm_mobilenetv3_small", stride=32, intensities="imagenet")
def timm_mobilenetv3_small(classes: int, channels: int) -> nn.Module:
    """Timm's MobileNetV3-Small with random weights; needs ``pip install timm``."""
    from grandrounds.models.backbones.libraries import import_torchvision

    import_torchvision()  # timm imports it, also where it was built for another torch
    import timm

    network: nn.Module = timm.create_model("mobilenetv3_small_050", num_classes=classes, in_chans=channels)
    return network
