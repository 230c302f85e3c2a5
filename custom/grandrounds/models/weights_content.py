"""What a file of weights holds, read without running code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard, get_args

import torch
from safetensors.torch import load_file
from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.models.backbones.bundles import read_bundle
from grandrounds.protocol.problem import IMAGENET, FixedIntensities

STATE, INTENSITIES, LICENCE, CLASS_LIST = "state_dict", "intensities", "licence", "classes"
BACKBONE_OPTION = "problem.backbone"


def read_weights(path: Path, backbone: str | None = None) -> tuple[Mapping[str, Tensor], FixedIntensities | None]:
    """The ``state_dict`` in a file, and the normalisation of images that the file declares, if it does.

    Args:
        path: of the file, or of the folder of a MONAI bundle.
        backbone: the network that takes them; None for any.

    Raises:
        ConfigurationError: if the file is missing or damaged, or has another content, such as an entry that is no
            dense tensor or has a value that is not finite; or if it declares another network.
    """
    content = read_content(path)
    state = content.get(STATE, content)
    if not _is_state(state):
        raise ConfigurationError(f"weights: {path} holds no state_dict: expected names with tensors")
    for name, tensor in state.items():
        fault = _fault(tensor)
        if fault:
            raise ConfigurationError(
                f"weights: {path}: the entry {name!r} {fault}; save it as a plain tensor of numbers"
            )
    named = content.get(BACKBONE_OPTION)
    if backbone and isinstance(named, str) and named != backbone:
        raise ConfigurationError(
            f"weights: {path} is of the network {named}: set {BACKBONE_OPTION}={named}, got {backbone}"
        )
    declared = content.get(INTENSITIES) if STATE in content else None
    if declared is not None and declared not in get_args(FixedIntensities):
        raise ConfigurationError(
            f"weights: {path} declares intensities {declared!r}; expected {', '.join(get_args(FixedIntensities))}"
        )
    return state, declared


def read_content(path: Path) -> Mapping[str, Any]:
    """What ``torch.save`` or safetensors has written, or what a MONAI bundle holds, read without running code.

    Raises:
        ConfigurationError: if the file is missing or damaged, or has another content, or the folder is no such bundle.
    """
    if path.is_dir():
        bundle = read_bundle(path)
        # The network of an export with problem.test_view is inside the one that averages.
        state = {name.removeprefix("network."): tensor for name, tensor in read_weights(bundle.weights)[0].items()}
        return {
            STATE: state,
            BACKBONE_OPTION: bundle.backbone,
            INTENSITIES: bundle.intensities,
            CLASS_LIST: bundle.classes,
        }
    if not path.is_file():
        raise ConfigurationError(f"weights: there is no file {path}; expected {IMAGENET!r} or the path of a state_dict")
    try:
        safe = path.suffix == ".safetensors"
        content = load_file(path) if safe else torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        # A damaged pickle can raise anything, and must not hide the other files of its folder.
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"weights: {path} cannot be read ({reason}); expected what torch.save(model.state_dict(), ...) writes"
        ) from error
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"weights: {path} holds no state_dict: expected names with tensors")
    return content


def _is_state(content: object) -> TypeGuard[Mapping[str, Tensor]]:
    return isinstance(content, Mapping) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    )


def _fault(tensor: Tensor) -> str:
    """Why a network cannot take this entry; empty if it can."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta or tensor.is_quantized:
        return "is no dense tensor"
    if tensor.is_complex():
        return "is complex"
    # A view of one number can stand for any number of them.
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        return "repeats what it stores"
    return "" if bool(torch.isfinite(tensor).all()) else "has a value that is not finite"
