"""Trained weights to start from: published ImageNet checkpoints, or a file.

Differences with a known reason are adapted: a head for another number of classes, or a missing one, stays untrained (the log
reports it), the first convolution is averaged over its input channels, and group norm takes no batch statistics. Any other
mismatch is refused, because a partly loaded network performs badly without an error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import get_args

from torch import Tensor, nn

from grandrounds.errors import ConfigurationError
from grandrounds.models.backbones.efficientnet_lite0 import published_name
from grandrounds.models.backbones.own import EncoderAndHead
from grandrounds.models.depths import DepthNetwork
from grandrounds.models.pretrained import imagenet_file, imagenet_weights, named_file, read_weights
from grandrounds.models.split import find_stem, head_name
from grandrounds.protocol.messages import is_running_statistic
from grandrounds.protocol.problem import IMAGENET, WEIGHTS_NAME, FixedIntensities, ModelSpec

COUNTER = "num_batches_tracked"
MAX_NAMED_ENTRIES = 3

_logger = logging.getLogger(__name__)
_read = lru_cache(maxsize=1)(lambda path, backbone, changed: read_weights(path, backbone))


def load_weights(model: nn.Module, spec: ModelSpec) -> None:
    """Load ``spec.weights`` into a model that was built to ``spec``, in place.

    ``spec.weights`` is "imagenet", a name of the weights folder, the path of a file with a ``state_dict`` (or
    ``{"state_dict": ...}``) or of a MONAI bundle's folder, or None for nothing.

    Raises:
        ConfigurationError: if the weights cannot be found or read, or do not fit this network.
    """
    if spec.weights is None:
        return
    path = _path(spec.weights, spec.backbone)
    published, _ = _read(path, spec.backbone, path.stat().st_mtime_ns if path.is_file() else None)
    state = {published_name(_modern_name(name)): tensor for name, tensor in published.items()}
    divided = model.backbone if isinstance(model, DepthNetwork) else model
    if isinstance(divided, EncoderAndHead) and not any(name.startswith("encoder.") for name in published):
        state = divided.renamed(published)
    _fit_stem(state, model)
    untouched = _drop_other_head(state, model, spec.weights)
    if spec.norm == "group":
        # Group norm takes no statistics, and weights that were trained with it have none.
        untouched |= {name for name in model.state_dict() if is_running_statistic(name) and name not in state}
    _require_fit(state, model, untouched, spec)
    model.load_state_dict(state, strict=False)


def declared_intensities(spec: ModelSpec) -> FixedIntensities:
    """How images were normalised for the weights of a network.

    Raises:
        ConfigurationError: if the weights declare nothing.
    """
    if spec.weights == IMAGENET:
        return imagenet_weights(spec.backbone).intensities
    _, declared = read_weights(_path(str(spec.weights), spec.backbone), spec.backbone)
    if declared is None:
        raise ConfigurationError(
            f"weights: {spec.weights} does not declare how images were normalised: set intensities to "
            f"{', '.join(get_args(FixedIntensities))}"
        )
    return declared


def _path(weights: str, backbone: str) -> Path:
    if weights == IMAGENET:
        return imagenet_file(backbone).path
    return named_file(weights).path if WEIGHTS_NAME.fullmatch(weights) else Path(weights)


def _modern_name(name: str) -> str:
    """The published DenseNet checkpoints have ``denselayer1.norm.1.weight`` where the network has ``norm1``."""
    return re.sub(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)", r"\1\2", name)


def _fit_stem(state: dict[str, Tensor], model: nn.Module) -> None:
    """Adapt the first convolution to another number of input channels.

    Each channel gets the sum over the file's channels, divided by the number of channels: a grey image has the same output
    as one channel or as three equal ones.
    """
    prefix, stem = find_stem(model)
    name, channels = f"{prefix}.weight", stem.in_channels
    given = state.get(name)
    if given is not None and given.dim() == 4 and given.shape[1] != channels:
        state[name] = (given.sum(dim=1, keepdim=True) / channels).repeat(1, channels, 1, 1)


def _drop_other_head(state: dict[str, Tensor], model: nn.Module, source: str) -> frozenset[str]:
    """Drop the head's entries if they are for another number of classes or there are none; return their names."""
    prefix = f"{head_name(model)}."
    head = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(prefix)}
    if not any(name in state for name in head):
        for name in [name for name in state if name.startswith(prefix)]:
            del state[name]  # of a head with other layers
        _logger.info("weights: %s has no such head; ours starts untrained", source)
        return frozenset(head)
    other = {name for name, tensor in head.items() if name in state and state[name].shape[:1] != tensor.shape[:1]}
    if not other:
        return frozenset()
    classes = {len(state[name]) for name in other}
    _logger.info("weights: the head in %s is for %s classes; ours starts untrained", source, classes.pop())
    for name in head:
        state.pop(name, None)
    return frozenset(head)


def _require_fit(state: Mapping[str, Tensor], model: nn.Module, untouched: frozenset[str], spec: ModelSpec) -> None:
    wanted = {name: tensor for name, tensor in model.state_dict().items() if name not in untouched}
    # Old checkpoints have no counters, and nothing is computed from them.
    missing = [name for name in wanted if name not in state and not name.endswith(COUNTER)]
    unexpected = [name for name in state if name not in wanted]
    misshaped = [
        f"{name} ({tuple(state[name].shape)}, expected {tuple(tensor.shape)})"
        for name, tensor in wanted.items()
        if name in state and state[name].shape != tensor.shape
    ]
    problems = [
        f"{len(names)} {kind}: {', '.join(names[:MAX_NAMED_ENTRIES])}{', ...' if len(names) > MAX_NAMED_ENTRIES else ''}"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshaped))
        if names
    ]
    if problems:
        raise ConfigurationError(f"weights: {spec.weights} does not fit {spec.backbone}: {'; '.join(problems)}")
