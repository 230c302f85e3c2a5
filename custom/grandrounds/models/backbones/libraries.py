"""Networks of MONAI, timm and torchvision by their libraries' names, such as ``timm:vit_small_patch16_224``.

They are built with random weights and nothing is downloaded. In a kit only the names that its lock lists can be built, with
the library as it was reviewed.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from grandrounds.errors import ConfigurationError
from grandrounds.models.backbones.own import OwnBackbone
from grandrounds.plugins import NETWORKS_VARIABLE, Distribution

MISSING_OPERATOR = "operator torchvision::nms does not exist"
NMS_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
HUB = "https://huggingface.co"
STRIDE = 32
SEVERAL_OUTPUTS = frozenset({"googlenet", "inception_v3"})
"""Networks of torchvision that give further logits in training."""


class Published(NamedTuple):
    """Trained weights of a network, as its library states them.

    Attributes:
        url: where they are.
        licence: an SPDX identifier or an address; empty if none is stated.
        mean: what was taken off the channels of images in [0, 1].
        deviation: what they were divided by.
    """

    url: str
    licence: str
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


class Library(ABC):
    """A library of networks that classify images of two dimensions.

    Attributes:
        distribution: how the library is called where it is installed.
        remedy: how to install it.
        constructor: a pattern of what a MONAI bundle calls to build one; its group ``name`` is the network's.
        spatial_dims: what a bundle must state as its argument of this name; None where there is none.
    """

    distribution: ClassVar[str]
    remedy: ClassVar[str]
    constructor: ClassVar[str]
    spatial_dims: ClassVar[int | None] = None

    @abstractmethod
    def names(self) -> Sequence[str]:
        """The names of its networks."""

    @abstractmethod
    def build(self, name: str, classes: int, channels: int) -> nn.Module:
        """A network with random weights."""

    def side(self, name: str) -> int:
        """The only side of images in pixels that a network takes; 0 if it takes any."""
        return 0

    def published(self, name: str) -> Published | None:
        """The weights that the library names for a network."""
        return None


class MonaiNetworks(Library):
    """MONAI's DenseNet, ResNet and squeeze-and-excitation networks."""

    distribution, remedy = "monai", "pip install monai"
    constructor, spatial_dims = r"(?:monai\.networks\.nets\.(?:\w+\.)?)?(?P<name>\w+)", 2
    arguments: Mapping[str, tuple[str, str]] = MappingProxyType(
        {
            r"DenseNet\d+": ("in_channels", "out_channels"),
            r"SE(Net|ResNet|ResNext)\d+": ("in_channels", "num_classes"),
            r"resnet\d+": ("n_input_channels", "num_classes"),
        }
    )
    """What the families call the numbers of channels and of classes."""

    def names(self) -> Sequence[str]:
        """Those of ``monai.networks.nets``."""
        return [name for name in dir(self._nets()) if self._family(name)]

    def build(self, name: str, classes: int, channels: int) -> nn.Module:
        """A network of two spatial dimensions."""
        keys = self.arguments[self._family(name)]
        return getattr(self._nets(), name)(spatial_dims=2, **dict(zip(keys, (channels, classes), strict=True)))

    def _family(self, name: str) -> str:
        return next((family for family in self.arguments if re.fullmatch(family, name)), "")

    @staticmethod
    def _nets() -> Any:
        return importlib.import_module("monai.networks.nets")


class TimmNetworks(Library):
    """All of timm's networks."""

    distribution, remedy = "timm", "pip install 'grandrounds[timm]'"
    constructor = r"timm\.(?:models\.)?create_model"

    def names(self) -> Sequence[str]:
        """Those that timm prints, with and without the tag of weights, which are not fetched."""
        return [*self._timm().list_models(), *self._timm().list_pretrained()]

    def build(self, name: str, classes: int, channels: int) -> nn.Module:
        """A network of ``timm.create_model``."""
        return self._timm().create_model(name, pretrained=False, num_classes=classes, in_chans=channels)

    def side(self, name: str) -> int:
        """That of transformers whose positions are embedded."""
        published = self._timm().models.get_pretrained_cfg(name)
        return int(published.input_size[-1]) if published and published.fixed_input_size else 0

    def published(self, name: str) -> Published | None:
        """Those of the tag in the name, or the library's first choice, at Hugging Face or a mirror ``$HF_ENDPOINT``."""
        stated = self._timm().models.get_pretrained_cfg(name)
        if stated is None or not stated.hf_hub_id:
            return None
        place = f"{os.environ.get('HF_ENDPOINT') or HUB}/{stated.hf_hub_id}/resolve/main"
        url = f"{place}/{stated.hf_hub_filename or 'model.safetensors'}"
        return Published(url, stated.license or "", tuple(stated.mean), tuple(stated.std))

    @staticmethod
    def _timm() -> Any:
        import_torchvision()  # timm imports it
        return importlib.import_module("timm")


class TorchvisionNetworks(Library):
    """Torchvision's networks for images; those of the registry are there under their names without a library."""

    distribution, remedy = "torchvision", "pip install torchvision"
    constructor = r"torchvision\.models\.(?:\w+\.)?(?P<name>\w+)"

    def names(self) -> Sequence[str]:
        """Those of ``torchvision.models`` that give one output."""
        models = import_torchvision().models
        return sorted(set(models.list_models(module=models)) - SEVERAL_OUTPUTS)

    def build(self, name: str, classes: int, channels: int) -> nn.Module:
        """A network whose first convolution has as many channels as the images."""
        network: nn.Module = import_torchvision().models.get_model(name, weights=None, num_classes=classes)
        if channels != 3:
            resize_stem(network, channels)
        return network

    def side(self, name: str) -> int:
        """That of transformers whose positions are embedded."""
        return 224 if name.startswith(("vit_", "maxvit_")) else 0

    def published(self, name: str) -> Published | None:
        """The library's first choice."""
        weights = import_torchvision().models.get_model_weights(name).DEFAULT
        view = weights.transforms()
        return Published(weights.url, weights.meta.get("license", "BSD-3-Clause"), tuple(view.mean), tuple(view.std))


NETWORK_LIBRARIES: Mapping[str, Library] = MappingProxyType(
    {"monai": MonaiNetworks(), "timm": TimmNetworks(), "torchvision": TorchvisionNetworks()}
)
"""By the prefix of their networks' names."""


def library_backbone(backbone: str) -> OwnBackbone | None:
    """The network that ``LIBRARY:NAME`` stands for; None for a name of another form.

    Raises:
        ConfigurationError: if the library is not installed or has no such network, or the kit does not list it.
    """
    if backbone.partition(":")[0] not in NETWORK_LIBRARIES:
        return None
    return _found(backbone, os.environ.get(NETWORKS_VARIABLE))


def library_of(backbone: str) -> Distribution:
    """The installed library of a network ``LIBRARY:NAME``.

    Raises:
        ConfigurationError: as of :func:`library_backbone`, and for a name of another form.
    """
    if library_backbone(backbone) is None:
        raise ConfigurationError(f"{backbone} is no network of a library: expected {' or '.join(_forms())}")
    return Distribution.installed(NETWORK_LIBRARIES[backbone.partition(":")[0]].distribution)


def _forms() -> list[str]:
    return [f"{prefix}:NAME" for prefix in NETWORK_LIBRARIES]


@cache
def _found(backbone: str, listed: str | None) -> OwnBackbone:
    prefix, _, name = backbone.partition(":")
    library = NETWORK_LIBRARIES[prefix]
    if listed is not None:
        _require_listed(backbone, json.loads(listed))
    try:
        names = library.names()
    except ImportError as error:
        raise ConfigurationError(
            f"backbone {backbone} needs {library.distribution}, which is not installed here ({error}): {library.remedy}"
        ) from error
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = (
            f"did you mean {' or '.join(f'{prefix}:{name}' for name in near)}?"
            if near
            else f"it has {len(names)} others"
        )
        raise ConfigurationError(
            f"unknown backbone {backbone!r}: {library.distribution} has no network {name!r}; {hint}"
        )
    side = library.side(name)
    return OwnBackbone(backbone, partial(library.build, name), side // 2 or STRIDE, None, "scaled", side)


def _require_listed(backbone: str, listed: Mapping[str, Sequence[str]]) -> None:
    if backbone not in listed:
        raise ConfigurationError(
            f"backbone {backbone} is not listed in this kit; review it and list it by grandrounds overlay KIT --network "
            f"{backbone}, at the server and at every site"
        )
    Distribution(*listed[backbone]).require_installed()


def resize_stem(model: nn.Module, channels: int) -> None:
    """Change the input channels of the first convolution; its weights are drawn with the deviation of the old ones."""
    stem = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    stem.in_channels = channels
    scale = float(stem.weight.detach().std())
    stem.weight = nn.Parameter(stem.weight.new_empty(stem.out_channels, channels, *stem.kernel_size))
    nn.init.normal_(stem.weight, std=scale)


def import_torchvision() -> ModuleType:
    """Import torchvision, also where its compiled operators do not fit the installed torch.

    A torchvision built for CUDA cannot load its operators beside a CPU-only torch and then refuses to be imported, although
    its networks need none of them. The operators are then declared, not implemented, and the import is repeated.

    Returns:
        The module ``torchvision``. Networks and transforms work; calling a missing operator raises ``NotImplementedError``.

    Raises:
        ImportError: if torchvision is not installed.
        RuntimeError: if its import fails for another reason than its missing operators.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if MISSING_OPERATOR not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", NMS_SIGNATURE)
    return importlib.import_module("torchvision")
