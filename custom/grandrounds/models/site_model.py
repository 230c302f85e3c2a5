"""A site's own model where it can be built elsewhere: ``own.pt``, its entries, and beside it ``own.json``, how to build it.

A site hands the two files over, or releases both as one dictionary of tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.files import replacing, write_json
from grandrounds.json_files import read_json_object
from grandrounds.models.trained import SavedNetwork
from grandrounds.models.weights import chosen_intensities
from grandrounds.protocol.problem import SITE_NORM, ModelSpec, Problem

OWN = "own"
MODEL_DESCRIPTION = "description"
"""The entry of a released model with its description, as the bytes of JSON."""
COMPARED = ("classes", "image_size", "channels", "task", "preprocessing")
"""What must be the same of models whose predictions are averaged."""


def model_description(spec: ModelSpec, problem: Problem, seed: int) -> dict[str, Any]:
    """How a site's model is built, and what it was trained for, as plain values.

    What training started from may be a path of the site's machine; only frozen layers are built from it again.
    """
    weights = spec.weights if spec.has_frozen else None
    norm = "batch" if spec.norm == SITE_NORM else spec.norm  # the statistics are in the file
    model = {**asdict(spec), "weights": weights, "intensities": chosen_intensities(spec), "norm": norm}
    content = problem.to_dict()
    return {"model": model, "seed": seed, **{name: content[name] for name in COMPARED}}


def with_description(state: Mapping[str, Tensor], description: Mapping[str, Any]) -> dict[str, Tensor]:
    """A model's entries and its description as one dictionary; of the path of a site's own weights the name stays."""
    model = description["model"]
    told = {**description, "model": {**model, "weights": model["weights"] and Path(model["weights"]).name}}
    return {**state, MODEL_DESCRIPTION: torch.frombuffer(bytearray(json.dumps(told).encode()), dtype=torch.uint8)}


def write_released(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write what :func:`with_description` has made as the two files.

    Raises:
        MessageError: if there is no description.
    """
    state = dict(tensors)
    try:
        description = json.loads(state.pop(MODEL_DESCRIPTION).numpy().tobytes())
    except (KeyError, ValueError, RecursionError) as error:
        raise MessageError(f"a site's model must come with its {MODEL_DESCRIPTION} ({type(error).__name__})") from error
    with replacing(folder / f"{OWN}.pt") as stream:
        torch.save(state, stream)
    write_json(folder / f"{OWN}.json", description)


def read_site_model(path: Path, problem: Problem) -> SavedNetwork:
    """The network of a file that a site has handed over, for an average with others of the problem.

    Raises:
        ConfigurationError: if there is no such file, it has no description beside it, or it is of another problem.
    """
    if not path.is_file():
        raise ConfigurationError(f"there is no model {path}; name the file {OWN}.pt that a site has handed over")
    content = read_json_object(path.with_suffix(".json"))
    try:
        found = SavedNetwork(ModelSpec(**content["model"]), path, int(content["seed"]))
        told = {name: content[name] for name in COMPARED}
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{path.with_suffix('.json')} does not say how {path.name} is built ({error}); take both files of the site"
        ) from error
    wanted = problem.to_dict()
    for name, value in told.items():
        if value != wanted[name]:
            raise ConfigurationError(
                f"{path}: {name} of this model is {value}, and of the run {wanted[name]}: only models of one problem are "
                "averaged; leave it out"
            )
    return found
