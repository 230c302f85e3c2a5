"""Networks of one's own: any module that maps images to logits, under a name of its own.

The network is divided into an encoder and its last linear layer, the head, so that it works with every method: those that
train the head alone, that compare embeddings, or that draw dropout before the head.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import NamedTuple, get_args

import torch
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError
from grandrounds.options import require_type
from grandrounds.plugins import Registry
from grandrounds.protocol.problem import FixedIntensities
from grandrounds.registered import require_parameters

Factory = Callable[[int, int], nn.Module]
"""From the numbers of classes and of channels to a network: images ``(batch, channels, height, width)`` to logits."""
_checked: set[tuple[str, int, int]] = set()


class OwnBackbone(NamedTuple):
    """A network of one's own or of a library; arguments as those of :func:`register_backbone`.

    ``side`` is the only side of images that it takes, or 0.
    """

    name: str
    factory: Factory
    stride: int
    head: str | None
    intensities: FixedIntensities
    side: int = 0

    def build(self, classes: int, channels: int) -> nn.Module:
        """Build the network, divided into encoder and head.

        Raises:
            ConfigurationError: if it is no module, has no linear layer for the classes at its end, or gives no logits.
        """
        network = self.factory(classes, channels)
        if not isinstance(network, nn.Module):
            raise ConfigurationError(
                f"backbone {self.name}: its factory gives {type(network).__name__}; return a torch.nn.Module"
            )
        if (self.name, classes, channels) in _checked:
            return self._divided(network, classes)
        whole = self._logits(network, channels)
        _require_shape(whole, classes, self.name)
        divided = self._divided(network, classes)
        _require_same(whole, self._logits(divided, channels), self.name)
        _checked.add((self.name, classes, channels))
        return divided

    def _divided(self, network: nn.Module, classes: int) -> EncoderAndHead:
        return EncoderAndHead(network, self.head or _last_linear(network, classes, self.name))

    @torch.no_grad()
    def _logits(self, network: nn.Module, channels: int) -> Tensor:
        """What a network gives in evaluation mode for two random images; its mode is restored."""
        training, side = network.training, self.side or 2 * self.stride
        images = torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(0))
        try:
            features: Tensor = network.eval()(images)
        finally:
            network.train(training)
        return features


OWN_BACKBONES: Registry[OwnBackbone] = Registry("backbone")


class EncoderAndHead(nn.Module):
    """A network whose last linear layer is a module beside the others.

    Args:
        network: maps images to logits; it becomes the encoder.
        head: full name of its last linear layer, which the encoder no longer has.
    """

    def __init__(self, network: nn.Module, head: str) -> None:
        super().__init__()
        linear = network.get_submodule(head)
        parent, _, name = head.rpartition(".")
        setattr(network.get_submodule(parent), name, nn.Identity())
        self.head_name = head
        self.encoder = network
        self.head = linear

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` to logits ``(batch, classes)``."""
        embeddings = self.encoder(images)
        # A frozen encoder gives maps of one position.
        return self.head(embeddings.flatten(1))

    def renamed(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The entries of a file with the names of the undivided network, under the names of this one."""
        inside = f"{self.head_name}."
        return {
            f"head.{name.removeprefix(inside)}" if name.startswith(inside) else f"encoder.{name}": tensor
            for name, tensor in state.items()
        }


def register_backbone(
    name: str, *, stride: int = 32, head: str | None = None, intensities: FixedIntensities = "scaled", side: int = 0
) -> Callable[[Factory], Factory]:
    """Register a network under a name, for ``problem.backbone`` and ``--backbone``; use it as a decorator.

    Args:
        name: lower-case letters, digits and ``_``; none of the package's own.
        stride: how much smaller than the image the last feature map is; images are at least twice as large.
        head: full name of the last linear layer; by default the last one with as many outputs as there are classes.
        intensities: of an image before the first layer: ``scaled`` (in [0, 1]), ``standardised``, ``spread``,
            ``imagenet`` or ``efficientnet_lite``; the option ``problem.intensities`` wins.
        side: the only side of images in pixels that it takes; 0 for any.

    Returns:
        A decorator of a function that takes the numbers of classes and of channels and returns the network.

    Raises:
        ConfigurationError: if the name is taken or has other characters, or an argument does not fit.

    Example::

        @register_backbone("densenet")
        def densenet(classes: int, channels: int) -> nn.Module:
            return DenseNet121(spatial_dims=2, in_channels=channels, out_channels=classes)
    """
    OWN_BACKBONES.require_name(name)
    require_type(stride, int, f"stride of backbone {name}")
    require_type(head, str | None, f"head of backbone {name}")
    require_type(side, int, f"side of backbone {name}")
    if stride < 1 or side < 0:
        what, least, given = ("stride", 1, stride) if stride < 1 else ("side", 0, side)
        raise ConfigurationError(f"{what} of backbone {name} must be at least {least}, got {given}")
    if intensities not in get_args(FixedIntensities):
        expected = ", ".join(get_args(FixedIntensities))
        raise ConfigurationError(f"intensities of backbone {name} must be one of {expected}, got {intensities!r}")

    def register(factory: Factory) -> Factory:
        require_parameters(f"the factory of backbone {name}", factory, "classes", "channels")
        OWN_BACKBONES.add(name, OwnBackbone(name, factory, stride, head, intensities, side), factory)
        _checked.difference_update({key for key in _checked if key[0] == name})
        return factory

    return register


def module_name(network: nn.Module) -> str:
    """Register a network itself, and return its name, which says its structure and weights; its copies are trained.

    Other processes do not know it: for kits and for later programs write a function and register that.
    """
    if not isinstance(network, nn.Module):
        raise ConfigurationError(
            f"backbone must be the name of a network or a torch.nn.Module, got {type(network).__name__}"
        )
    digest = hashlib.sha256(repr(network).encode())
    for name, values in network.state_dict().items():
        digest.update(name.encode() + values.detach().cpu().numpy().tobytes())
    kind = re.sub(r"[^a-z0-9]+", "_", type(network).__name__.lower())[:24].strip("_")

    def factory(classes: int, channels: int) -> nn.Module:
        return deepcopy(network)

    name = f"{kind}_{digest.hexdigest()[:8]}"
    register_backbone(name)(factory)
    return name


def _last_linear(network: nn.Module, classes: int, backbone: str) -> str:
    names = [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == classes
    ]
    if not names:
        raise ConfigurationError(
            f"backbone {backbone}: {type(network).__name__} has no linear layer with {classes} outputs; its factory must "
            "use the number of classes, or name the layer by head"
        )
    return str(names[-1])


def _require_shape(whole: Tensor, classes: int, backbone: str) -> None:
    if not isinstance(whole, Tensor) or whole.shape != (2, classes):
        shape = tuple(whole.shape) if isinstance(whole, Tensor) else type(whole).__name__
        raise ConfigurationError(
            f"backbone {backbone} gives {shape} for two images, expected logits of shape (2, {classes})"
        )


def _require_same(whole: Tensor, divided: Tensor, backbone: str) -> None:
    if not torch.allclose(whole, divided, atol=1e-4, rtol=1e-4):
        raise ConfigurationError(
            f"backbone {backbone}: its last linear layer does not give the logits (is there a softmax behind it?); return "
            "logits, or name the layer by head"
        )
