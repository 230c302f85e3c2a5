"""What a file of weights holds, read without running code."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.protocol.problem import IMAGENET, FixedIntensities

STATE, INTENSITIES, LICENCE = "state_dict", "intensities", "licence"


def read_weights(path: Path) -> tuple[Mapping[str, Tensor], FixedIntensities | None]:
    """The ``state_dict`` in a file, and the normalisation of images that the file declares, if it does.

    Raises:
        ConfigurationError: if the file is missing or damaged, or has another content.
    """
    content = read_content(path)
    state = content.get(STATE, content)
    if not isinstance(state, Mapping) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise ConfigurationError(f"weights: {path} holds no state_dict: expected names with tensors")
    declared = content.get(INTENSITIES) if STATE in content else None
    if declared is not None and declared not in get_args(FixedIntensities):
        raise ConfigurationError(
            f"weights: {path} declares intensities {declared!r}; expected {', '.join(get_args(FixedIntensities))}"
        )
    return state, declared


def read_content(path: Path) -> Mapping[str, Any]:
    """What ``torch.save`` has written, read without running code.

    Raises:
        ConfigurationError: if the file is missing or damaged, or has another content.
    """
    if not path.is_file():
        raise ConfigurationError(f"weights: there is no file {path}; expected {IMAGENET!r} or the path of a state_dict")
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, LookupError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"weights: {path} cannot be read ({reason}); expected what torch.save(model.state_dict(), ...) writes"
        ) from error
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"weights: {path} holds no state_dict: expected names with tensors")
    return content
