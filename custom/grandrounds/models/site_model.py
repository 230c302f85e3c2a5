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

from grandrounds.models.partial import frozen_digest
from grandrounds.models.registry import chosen_intensities
from grandrounds.protocol.descriptions import COMPARED, MODEL_DESCRIPTION
from grandrounds.protocol.problem import SITE_NORM, WEIGHTS_NAME, ModelSpec, Problem

OWN = "own"


def model_description(
    network: nn.Module, spec: ModelSpec, problem: Problem, seed: int, run_id: str, site: str
) -> dict[str, Any]:
    """How a site's model is built, what it was trained for, where, and the digest of its frozen layers, as plain values.

    Frozen layers are built again from what training started from. A file of the site's machine has a name here, under which
    its weights are added elsewhere.
    """
    weights = spec.weights if spec.has_frozen else None
    if weights and not WEIGHTS_NAME.fullmatch(weights):
        weights = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{site}-{Path(weights).stem}")
    own_statistics = spec.norm == SITE_NORM  # they are in the file
    norm = "batch" if own_statistics else spec.norm
    model = {**asdict(spec), "weights": weights, "intensities": chosen_intensities(spec), "norm": norm}
    frozen = frozen_digest(network, statistics=not own_statistics) or ""
    content = problem.to_dict()
    of_training = {"model": model, "seed": seed, "run_id": run_id, "site": site, "frozen": frozen}
    return {**of_training, **{name: content[name] for name in COMPARED}}


def with_description(state: Mapping[str, Tensor], description: Mapping[str, Any]) -> dict[str, Tensor]:
    """A model's entries and its description as one dictionary."""
    return {
        **state,
        MODEL_DESCRIPTION: torch.frombuffer(bytearray(json.dumps(description).encode()), dtype=torch.uint8),
    }
