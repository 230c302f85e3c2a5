"""The description of a site's own model, which travels with the model: how it is built, and what it was trained for."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from grandrounds.checks import reraised_as
from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.files import require_object

MODEL_DESCRIPTION = "description"
"""The entry of a released model with its description, as the bytes of JSON."""
COMPARED = ("classes", "image_size", "channels", "task", "preprocessing")
"""What must be the same of models whose predictions are averaged."""
_STATED = {"seed": int, "run_id": str, "site": str, "frozen": str}


def read_description(encoded: Tensor | None) -> dict[str, Any]:
    """The description in a released model, as it was sent.

    Raises:
        MessageError: if there is none, or it is not the JSON object of :func:`require_description`.
    """
    if encoded is None or encoded.dtype != torch.uint8 or encoded.dim() != 1:
        raise MessageError(f"a site's model must come with its {MODEL_DESCRIPTION}, bytes of shape (length,)")
    where = f"the {MODEL_DESCRIPTION} of a site's model cannot be read"
    with reraised_as(MessageError, ValueError, RecursionError, where=where):
        content: dict[str, Any] = json.loads(encoded.numpy().tobytes())
        require_description(content, MODEL_DESCRIPTION)
    return content


def require_description(content: Any, where: str) -> None:
    """Check the form of a description; ``where`` is named in errors.

    Raises:
        ConfigurationError: if an entry is missing, unknown or of another type.
    """
    require_object(content, where, ["model", *_STATED, *COMPARED])
    for name, kind in _STATED.items():
        if type(content[name]) is not kind:
            raise ConfigurationError(f"{where}: {name} must be of type {kind.__name__}, got {content[name]!r}")
    if not 0 <= content["seed"] < 2**63:
        raise ConfigurationError(f"{where}: seed must be at least 0 and below 2**63")
