"""MONAI bundles of classifiers as weights to start from: which network they are of, and where its weights lie.

A configuration of MONAI can name any callable. Here ``network_def`` is compared with what may be named and its numbers are
read; nothing of it is imported, called or evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grandrounds.checks import reraised_as
from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object
from grandrounds.models.backbones.libraries import NETWORK_LIBRARIES, library_backbone

CONFIGURATIONS = tuple(f"{name}.{kind}" for name in ("inference", "train") for kind in ("json", "yaml", "yml"))
OWN_TARGET, OWN_CARD = "torch.jit.load", Path("docs", "model_card.json")
OF_WEIGHTS = frozenset(
    {
        *("in_channels", "n_input_channels", "in_chans", "out_channels", "num_classes"),
        *("model_name", "pretrained", "progress", "weights"),
    }
)
"""Arguments that the weights decide: sizes, and how a library would find weights of its own."""

INTERPRETED = ("$", "@", "%")
"""How texts begin that MONAI evaluates, looks up, or reads from a file."""


class Bundle(NamedTuple):
    """A bundle of a classifier.

    Attributes:
        backbone: its network, for ``problem.backbone``.
        weights: the file with its ``state_dict``.
        intensities: how images are normalised before its first layer; None if it does not say so.
        classes: in the order of its outputs; None if it does not say so.
    """

    backbone: str
    weights: Path
    intensities: Any = None
    classes: Any = None


def read_bundle(folder: Path) -> Bundle:
    """Read the folder of a bundle: one of ``grandrounds export``, or one whose network has a name here.

    Raises:
        ConfigurationError: if it is no bundle, its network is not one of two dimensions that a library's name stands for, or
            its ``network_def`` has an expression or further arguments.
    """
    files = [folder / "configs" / name for name in CONFIGURATIONS]
    file = next((file for file in files if file.is_file()), None)
    weights = [
        path for path in (folder / "models" / f"model.{kind}" for kind in ("safetensors", "pt")) if path.is_file()
    ]
    if file is None or not weights:
        missing = "models/model.pt" if file else "configs/inference.json"
        raise ConfigurationError(f"weights: {folder} is a folder and no MONAI bundle: it has no {missing}")
    definition = _definition(file)
    if definition["_target_"] == OWN_TARGET:
        return _own(folder, weights[0])
    metadata = folder / "configs" / "metadata.json"
    value: Any = read_json_object(metadata) if metadata.is_file() else {}
    for key in ("network_data_format", "inputs", "image", "value_range"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return Bundle(_backbone(definition, file), weights[0], "scaled" if value == [0, 1] else None)


def _own(folder: Path, weights: Path) -> Bundle:
    if not (folder / OWN_CARD).is_file():
        raise ConfigurationError(
            f"weights: the network of {folder} is TorchScript, which cannot be trained; take the bundle of a network of "
            f"{', '.join(NETWORK_LIBRARIES)}, or one of grandrounds export with its {OWN_CARD}"
        )
    card = read_json_object(folder / OWN_CARD)
    where = f"weights: {folder / OWN_CARD} is no card of grandrounds export"
    with reraised_as(ConfigurationError, LookupError, TypeError, AttributeError, where=where):
        preprocessing = card["preprocessing"]
        return Bundle(card["architecture"]["backbone"], weights, preprocessing.get("intensities"), card["classes"])


def _definition(file: Path) -> dict[str, Any]:
    """``network_def`` with its references resolved."""
    from monai.bundle import ConfigParser

    parser = ConfigParser(globals=False)
    try:
        parser.read_config(file)
    except Exception as error:  # of two parsers, and MONAI's own
        reason = " ".join(str(error).split())[:200]
        raise ConfigurationError(f"weights: {file} cannot be read ({reason})") from error
    definition = parser.get("network_def")
    if not isinstance(definition, dict) or not isinstance(definition.get("_target_"), str):
        raise ConfigurationError(f"weights: {file} has no network_def with a _target_")
    return {
        key: parser.get(value[1:], value) if isinstance(value, str) and value.startswith("@") else value
        for key, value in definition.items()
    }


def _backbone(definition: Mapping[str, Any], file: Path) -> str:
    for key, value in definition.items():
        if isinstance(value, str) and value.startswith(INTERPRETED):
            raise ConfigurationError(
                f"weights: {file}: network_def: {key} is {value!r}, and expressions are not evaluated; write its value"
            )
    target = str(definition["_target_"])
    arguments = {key: value for key, value in definition.items() if not key.startswith("_")}
    for prefix, library in NETWORK_LIBRARIES.items():
        named = re.fullmatch(library.constructor, target)
        if not named:
            continue
        dimensions = arguments.pop("spatial_dims", None)
        if dimensions != library.spatial_dims:
            raise ConfigurationError(
                f"weights: {file}: network_def: spatial_dims must be {library.spatial_dims}, for images, got {dimensions!r}"
            )
        if others := sorted(arguments.keys() - OF_WEIGHTS):
            raise ConfigurationError(
                f"weights: {file}: network_def: {', '.join(others)}: a network has the arguments that its name "
                f"stands for; register it with gr.register_backbone, and name the bundle's {Path('models', 'model.pt')}"
            )
        backbone = f"{prefix}:{named.groupdict().get('name') or arguments.get('model_name')}"
        library_backbone(backbone)
        return backbone
    raise ConfigurationError(
        f"weights: {file}: network_def: _target_ {target!r} is no network that a bundle may name; expected one of "
        "monai.networks.nets or torchvision.models, or timm.create_model"
    )
