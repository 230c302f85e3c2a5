"""A site's own model where it can be built elsewhere: ``own.pt``, its entries, and beside it ``own.json``, how to build it.

A site hands the two files over, or releases both as one dictionary of tensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grandrounds.checks import told_as
from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.json_files import require_object
from grandrounds.protocol.problem import SITE_NORM, WEIGHTS_NAME, ModelSpec, Problem

OWN = "own"
MODEL_DESCRIPTION = "description"
"""The entry of a released model with its description, as the bytes of JSON."""
COMPARED = ("classes", "image_size", "channels", "task", "preprocessing")
"""What must be the same of models whose predictions are averaged."""
_STATED = {"seed": int, "run_id": str, "site": str, "frozen": str}


def model_description(
    network: nn.Module, spec: ModelSpec, problem: Problem, seed: int, run_id: str, site: str
) -> dict[str, Any]:
    """How a site's model is built, what it was trained for, where, and the digest of its frozen layers, as plain values.

    Frozen layers are built again from what training started from. A file of the site's machine has a name here, under which
    its weights are added elsewhere.
    """
    # The gate reads descriptions, and builds no network.
    from grandrounds.models.partial import frozen_digest
    from grandrounds.models.registry import chosen_intensities

    weights = spec.weights if spec.has_frozen else None
    if weights and not WEIGHTS_NAME.fullmatch(weights):
        weights = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{site}-{Path(weights).stem}")
    own_statistics = spec.norm == SITE_NORM  # they are in the file
    norm = "batch" if own_statistics else spec.norm
    model = {**asdict(spec), "weights": weights, "intensities": chosen_intensities(spec), "norm": norm}
    frozen = frozen_digest(network, statistics=not own_statistics) or ""
    content = problem.to_dict()
    told = {"model": model, "seed": seed, "run_id": run_id, "site": site, "frozen": frozen}
    return {**told, **{name: content[name] for name in COMPARED}}


def with_description(state: Mapping[str, Tensor], description: Mapping[str, Any]) -> dict[str, Tensor]:
    """A model's entries and its description as one dictionary."""
    return {
        **state,
        MODEL_DESCRIPTION: torch.frombuffer(bytearray(json.dumps(description).encode()), dtype=torch.uint8),
    }


def read_description(encoded: Tensor | None) -> dict[str, Any]:
    """The description in a released model, as it was sent.

    Raises:
        MessageError: if there is none, or it is not the JSON object of :func:`model_description`.
    """
    if encoded is None or encoded.dtype != torch.uint8 or encoded.dim() != 1:
        raise MessageError(f"a site's model must come with its {MODEL_DESCRIPTION}, bytes of shape (length,)")
    where = f"the {MODEL_DESCRIPTION} of a site's model cannot be read"
    with told_as(MessageError, ValueError, RecursionError, where=where):
        content: dict[str, Any] = json.loads(encoded.numpy().tobytes())
        require_fields(content, MODEL_DESCRIPTION)
    return content


def require_fields(content: Any, where: str) -> None:
    """Check the form of a description; ``ConfigurationError`` names what is wrong."""
    require_object(content, where, ["model", *_STATED, *COMPARED])
    for name, kind in _STATED.items():
        if type(content[name]) is not kind:
            raise ConfigurationError(f"{where}: {name} must be of type {kind.__name__}, got {content[name]!r}")
    if not 0 <= content["seed"] < 2**63:
        raise ConfigurationError(f"{where}: seed must be at least 0 and below 2**63")
