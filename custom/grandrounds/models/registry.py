"""The registry of networks, built the same way for every method and every site.

``compact``, ``resnet9`` (FedMatch's, Jeong et al., ICLR 2021), MDH-FL's four, ``shufflenet``, ``resnet10``, ``resnet12``
and ``mobilenetv2`` (Fang & Ye, CVPR 2022), ``resnet22`` (Wu et al., IEEE TMI 2020; used by Fed-Align-CL) and
``efficientnet_lite0``, whose ImageNet weights an optional package ships, need torch alone. The others are torchvision's:
EfficientNet-B0 (Tan & Le, ICML 2019; used by FedPerl), DenseNet-121 (Huang et al., CVPR 2017; used by FedIRM) and
ResNet-18 (He et al., CVPR 2016).
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError
from grandrounds.models.depths import DepthNetwork
from grandrounds.models.intensities import set_intensities
from grandrounds.models.norm_layers import frozen_statistics, replace_module, to_frozen_norm, to_group_norm
from grandrounds.models.partial import freeze_front, frozen_names
from grandrounds.models.split import head_of
from grandrounds.protocol.problem import (
    DEPTHS,
    FROZEN_NORMS,
    IMAGENET,
    SITE_NORM,
    FixedIntensities,
    ModelSpec,
    Problem,
    hidden_widths,
)

if TYPE_CHECKING:
    from grandrounds.models.backbones.own import OwnBackbone


class Backbone(NamedTuple):
    """A network of the registry.

    ``stride`` is how much smaller than the image the last feature map is. ``chain`` names the modules that images pass one
    after the other, up to the pooling, with ``.*`` for the children of a sequence; a network can be frozen up to each of
    them. ``build`` takes the numbers of classes and of channels, and is None for torchvision's. ``taps`` are the modules of
    the chain that the head ``depths`` reads, each with its number of channels; it reads the pooled last layer beside them
    unless ``reads_last`` is false, and of a network without taps this alone. ``side`` is the only side of images that it
    takes, or 0.
    """

    stride: int
    chain: tuple[str, ...]
    build: Callable[[int, int], nn.Module] | None = None
    taps: tuple[tuple[str, int], ...] = ()
    reads_last: bool = True
    side: int = 0


def _of(module: str, network: str) -> Callable[[int, int], nn.Module]:
    """Build a network of :mod:`grandrounds.models.backbones`, whose module is imported with the first one."""

    def build(classes: int, channels: int) -> nn.Module:
        return getattr(import_module(f"grandrounds.models.backbones.{module}"), network)(classes, channels)

    return build


def _blocks(channels: Mapping[int, int]) -> tuple[tuple[str, int], ...]:
    return tuple((f"blocks.{number}", width) for number, width in channels.items())


BACKBONES: Mapping[str, Backbone] = MappingProxyType(
    {
        "compact": Backbone(16, ("stem", "blocks.*"), _of("small_resnets", "CompactNet"), _blocks({0: 32, 1: 64})),
        "densenet121": Backbone(
            32,
            ("features.*",),
            None,
            (("features.transition1", 128), ("features.transition2", 256), ("features.transition3", 512)),
        ),
        "efficientnet_b0": Backbone(
            32,
            ("features.*",),
            None,
            (("features.3", 40), ("features.4", 80), ("features.5", 112), ("features.6", 192)),
        ),
        "efficientnet_lite0": Backbone(
            32,
            ("stem", "blocks.*", "widen"),
            _of("efficientnet_lite0", "EfficientNetLite0"),
            _blocks({4: 40, 5: 80, 7: 80, 9: 112, 10: 112, 12: 192, 14: 192, 15: 320}),
            reads_last=False,
        ),
        "mobilenetv2": Backbone(
            8, ("stem", "blocks.*", "widen"), _of("mobile", "MobileNetV2"), _blocks({5: 32, 9: 64, 12: 96, 15: 160})
        ),
        "resnet10": Backbone(
            8, ("stem", "blocks.*"), _of("small_resnets", "ResNet10"), _blocks({0: 64, 1: 128, 2: 256})
        ),
        "resnet12": Backbone(
            8, ("stem", "blocks.*"), _of("small_resnets", "ResNet12"), _blocks({1: 64, 2: 128, 3: 256})
        ),
        "resnet18": Backbone(
            32,
            ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4"),
            None,
            (("layer1", 64), ("layer2", 128), ("layer3", 256)),
        ),
        "resnet22": Backbone(
            64,
            ("noise", "stem", "blocks.*", "norm"),
            _of("resnet22", "ResNet22"),
            _blocks({1: 16, 3: 32, 5: 64, 7: 128}),
        ),
        "resnet9": Backbone(
            8,
            ("stem", "residual1", "middle", "residual2"),
            _of("small_resnets", "ResNet9"),
            (("residual1", 128), ("middle", 512)),
        ),
        "shufflenet": Backbone(
            8, ("stem", "units.*"), _of("mobile", "ShuffleNet"), (("units.3", 200), ("units.11", 400))
        ),
    }
)
# The paper's batch norm keeps 0.99 of its running statistics in each step, 0.01 in torch's convention; torchvision leaves
# it at torch's 0.1.
EFFICIENTNET_NORM_MOMENTUM = 0.01
WITH_DROPOUT_LAYERS = frozenset({"densenet121"})


class DropoutLinear(nn.Linear):
    """A linear layer with dropout before it; its entries keep the names of the layer that it replaces.

    It shares the weight and bias of ``linear``; the probability of dropping a feature is in [0, 1).
    """

    def __init__(self, linear: nn.Linear, probability: float) -> None:
        super().__init__(linear.in_features, linear.out_features)
        self.weight, self.bias = linear.weight, linear.bias
        self.dropout = nn.Dropout(probability)

    def forward(self, input: Tensor) -> Tensor:
        """Map features ``(batch, features)`` to logits ``(batch, classes)``."""
        return super().forward(self.dropout(input))


def build_model(spec: ModelSpec, seed: int) -> nn.Module:
    """Build a network: images ``(batch, channels, height, width)`` in [0, 1] to logits ``(batch, classes)``.

    ``seed`` is that of the random initialisation; the global generators do not change. Layers that ``spec`` freezes have
    their weights always, see :mod:`~grandrounds.models.partial`.

    Returns:
        A float32 model on the CPU, in training mode, channels-last in memory.

    Raises:
        ConfigurationError: if there is no such network, or ``spec.weights`` cannot be fetched or do not fit.
    """
    require_buildable(spec)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also seed every GPU.
        torch.default_generator.manual_seed(seed)
        model = _bare_model(spec)
        if spec.head == DEPTHS:
            backbone = _known(spec.backbone)
            model = DepthNetwork(model, backbone.chain, dict(backbone.taps), spec.classes, backbone.reads_last)
        _add_hidden_layers(model, hidden_widths(spec.head))
        _set_head_dropout(model, spec)
    if spec.weights is not None and (spec.load_weights or spec.has_frozen):
        from grandrounds.models.weights import load_weights  # most runs start from no file

        load_weights(model, spec)
    intensities = chosen_intensities(spec)
    frozen = frozen_names(model, spec.trainable, _known(spec.backbone).chain)
    if frozen and not spec.whole:
        freeze_front(model, spec.trainable, frozen, spec.channels, intensities)
    else:
        set_intensities(model, intensities)
    if spec.norm == "group":
        to_group_norm(model, frozen if spec.whole else ())
    elif spec.norm in FROZEN_NORMS:
        to_frozen_norm(model)
        if spec.norm == SITE_NORM and not frozen_statistics(model):
            raise ConfigurationError(
                f"problem.norm=site: no trained layer of {spec.backbone} has batch norm; leave it out"
            )
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def backbone_names() -> tuple[str, ...]:
    """The names of all backbones, registered ones included, in alphabetical order."""
    return tuple(sorted({*BACKBONES, *_own_backbones()}))


def minimum_image_size(backbone: str) -> int:
    """The minimum side in pixels of an image: the last feature map then has at least 2x2 positions.

    With one position batch norm cannot train on a single image.

    Raises:
        ConfigurationError: if there is no such backbone.

    Example:
        >>> minimum_image_size("resnet18"), minimum_image_size("compact")
        (64, 32)
    """
    known = _known(backbone)
    return known.side or 2 * known.stride


def is_backbone(name: str) -> bool:
    """Whether a network of this name can be built here."""
    try:
        _known(name)
    except ConfigurationError:
        return False
    return True


def require_buildable(spec: ModelSpec, image_size: int | None = None) -> None:
    """Check that there is such a network, and that it takes images of this size if one is given.

    Raises:
        ConfigurationError: naming the option, what was expected and what came.
    """
    known = _known(spec.backbone)
    minimum = minimum_image_size(spec.backbone)
    if image_size is not None and (image_size < minimum or known.side not in (0, image_size)):
        expected = f"{minimum}, the only size" if known.side else f"at least {minimum}"
        own = spec.backbone in _own_backbones() and not known.side
        why = (
            f": twice the stride={known.stride} of its register_backbone; set that to the network's own" if own else ""
        )
        raise ConfigurationError(
            f"problem.image_size must be {expected} for backbone {spec.backbone}, got {image_size}{why}"
        )
    if spec.dropout_at == "layers" and spec.backbone not in WITH_DROPOUT_LAYERS:
        raise ConfigurationError(
            f"model: {spec.backbone} has no dropout in its layers; use dropout_at='head', "
            f"or one of {', '.join(sorted(WITH_DROPOUT_LAYERS))}"
        )


def architecture_fingerprint(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over the sorted names, shapes and dtypes of a ``state_dict``: equal if and only if one fits the other.

    Example:
        >>> architecture_fingerprint({"weight": torch.zeros(2)}) == architecture_fingerprint({"weight": torch.ones(2)})
        True
    """
    lines = (f"{name} {tuple(state[name].shape)} {state[name].dtype}" for name in sorted(state))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def chosen_intensities(spec: ModelSpec) -> FixedIntensities:
    """How a network's images are normalised: as configured, or what ``auto`` stands for.

    That is what the weights declare; without weights, what a registered network declares, and else ``scaled``.

    Raises:
        ConfigurationError: if that is ``auto`` and the weights declare nothing.
    """
    if spec.intensities != "auto":
        return spec.intensities
    if spec.weights is not None:
        from grandrounds.models.weights import declared_intensities  # most runs start from no file

        return declared_intensities(spec)
    if spec.backbone in BACKBONES:
        return "scaled"
    own = _own_backbones().get(spec.backbone)
    return own.intensities if own else "scaled"


def with_intensities(problem: Problem) -> Problem:
    """The problem as a run's sites need it: with what its weights declare, if the sites may lack their file.

    Otherwise ``auto`` stays, so that a site with a network of its own finds what that one needs.

    Raises:
        ConfigurationError: if intensities are ``auto`` and the weights declare nothing.
    """
    intensities = chosen_intensities(problem.model_spec(pretrained=True))
    return problem if problem.weights in (None, IMAGENET) else replace(problem, intensities=intensities)


def _own_backbones() -> Mapping[str, OwnBackbone]:
    from grandrounds.models.backbones.own import OWN_BACKBONES

    return OWN_BACKBONES.all(BACKBONES)


def _known(backbone: str) -> Backbone:
    if backbone in BACKBONES:
        return BACKBONES[backbone]
    from grandrounds.models.backbones.libraries import NETWORK_LIBRARIES, library_backbone

    own = _own_backbones().get(backbone) or library_backbone(backbone)
    if own is None:
        near = difflib.get_close_matches(backbone, backbone_names(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigurationError(
            f"unknown backbone {backbone!r}: {hint}There are {', '.join(backbone_names())}, and "
            f"{', '.join(f'{library}:NAME' for library in NETWORK_LIBRARIES)}"
        )
    return Backbone(own.stride, ("encoder",), own.build, side=own.side)


def _bare_model(spec: ModelSpec) -> nn.Module:
    """The network with batch norm and random weights, for the right number of classes and channels."""
    build = _known(spec.backbone).build
    if build is not None:
        return build(spec.classes, spec.channels)
    from grandrounds.models.backbones.libraries import import_torchvision, resize_stem

    options = {"drop_rate": spec.dropout or 0.0} if spec.dropout_at == "layers" else {}
    model: nn.Module = import_torchvision().models.get_model(spec.backbone, num_classes=spec.classes, **options)
    if spec.backbone == "efficientnet_b0":
        _set_norm_momentum(model, EFFICIENTNET_NORM_MOMENTUM)
    if spec.channels != 3:
        resize_stem(model, spec.channels)
    return model


def _set_norm_momentum(model: nn.Module, momentum: float) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = momentum


def _last_linear(model: nn.Module) -> tuple[str, nn.Linear]:
    """The full name of the last linear layer, which gives the logits, and the layer."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]


def _add_hidden_layers(model: nn.Module, widths: Sequence[int]) -> None:
    if not widths:
        return
    name, linear = _last_linear(model)
    layers: list[nn.Module] = []
    before = linear.in_features
    for width in widths:
        layers += [nn.Linear(before, width), nn.ReLU()]
        before = width
    replace_module(model, name, nn.Sequential(*layers, nn.Linear(before, linear.out_features)))


def _set_head_dropout(model: nn.Module, spec: ModelSpec) -> None:
    head = head_of(model)
    dropouts = [module for module in head.modules() if isinstance(module, nn.Dropout)]
    for dropout in dropouts:
        # In place it would overwrite the features, which are used again by methods with several dropout passes.
        dropout.inplace = False
    if spec.dropout is None or spec.dropout_at != "head":
        return
    for dropout in dropouts:
        dropout.p = spec.dropout
    if not dropouts:
        name, linear = _last_linear(model)
        replace_module(model, name, DropoutLinear(linear, spec.dropout))
