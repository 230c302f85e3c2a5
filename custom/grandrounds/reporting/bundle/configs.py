"""The configurations of a bundle: how MONAI runs the model, and what it is.

Network and pixels are of TorchScript and the bundle's ``scripts``, all else is MONAI's. MONAI evaluates texts of
``configs/``, so names of other people are literals there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy
import torch

from grandrounds.protocol.problem import Problem
from grandrounds.reporting.format import pluralize

VERSION = "0.1.0"
SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
MONAI_COMMANDS = (
    "python -m monai.bundle run --config_file configs/inference.json --dataset_dir IMAGES",
    "python -m monai.bundle run evaluate --config_file \"['configs/inference.json','configs/evaluate.json']\" "
    "--dataset_dir IMAGES --labels labels.csv",
    "python -m monai.bundle verify_metadata --meta_file configs/metadata.json --filepath eval/schema.json",
    "python -m monai.bundle ckpt_export --config_file configs/inference.json --filepath models/exported.ts",
)
_INTERPRETED = frozenset("$%@#")


def configs(problem: Problem, card: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The configurations by the names of their files."""
    return {
        "inference": _inference(problem),
        "evaluate": _evaluate(problem.classes),
        "metadata": _literal(_metadata(problem, card)),
    }


def _literal(value: Any) -> Any:
    """A value of a configuration of which MONAI evaluates no text."""
    if isinstance(value, Mapping):
        return {key: _literal(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_literal(entry) for entry in value]
    return literal_text(value) if isinstance(value, str) else value


def literal_text(text: str) -> str:
    """What MONAI's ``ConfigParser`` takes as this text, whatever is in it.

    A text that begins with ``$`` is an expression to it, ``%`` a file, ``@`` a reference, and ``#`` separates identifiers.
    A text with one of them becomes the expression of a Python literal that has none.
    """
    if not _INTERPRETED.intersection(text):
        return text
    return "$" + "".join(f"\\x{ord(sign):02x}" if sign in _INTERPRETED else sign for sign in ascii(text))


def _inference(problem: Problem) -> dict[str, Any]:
    return {
        "imports": ["$import torch", "$from monai.handlers import from_engine"],
        "bundle_root": ".",
        "dataset_dir": "images",
        "output_dir": "$@bundle_root + '/eval'",
        "batch_size": 16,
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "network_def": {
            "_target_": "torch.jit.load",
            "f": "$@bundle_root + '/models/model.ts'",
            "map_location": "@device",
        },
        "network": "$@network_def.to(@device)",
        "decoder": {
            "_target_": "scripts.images.ImageDecoder",
            "size": problem.image_size,
            "channels": problem.channels,
            "preprocessing": problem.preprocessing,
        },
        "preprocessing": {"_target_": "monai.transforms.Lambdad", "keys": "image", "func": "@decoder"},
        "dataset": {
            "_target_": "monai.data.Dataset",
            "data": {"_target_": "scripts.images.listed_images", "folder": "@dataset_dir"},
            "transform": "@preprocessing",
        },
        "dataloader": {"_target_": "monai.data.DataLoader", "dataset": "@dataset", "batch_size": "@batch_size"},
        "inferer": {"_target_": "monai.inferers.SimpleInferer"},
        "postprocessing": {
            "_target_": "monai.transforms.Activationsd",
            "keys": "pred",
            problem.kind.activation: True,
        },
        "handlers": [
            {
                "_target_": "monai.handlers.ClassificationSaver",
                "output_dir": "@output_dir",
                "output_transform": "$from_engine('pred')",
            }
        ],
        "evaluator": {
            "_target_": "monai.engines.SupervisedEvaluator",
            "device": "@device",
            "val_data_loader": "@dataloader",
            "network": "@network",
            "inferer": "@inferer",
            "postprocessing": "@postprocessing",
            "val_handlers": "@handlers",
        },
        "run": ["$@evaluator.run()"],
    }


def _evaluate(classes: Sequence[str]) -> dict[str, Any]:
    """What the evaluation of labelled images has beside the inference."""
    return {
        "labels": "labels.csv",
        "classes": _literal(list(classes)),
        "dataset#data": {
            "_target_": "scripts.images.images_of_table",
            "folder": "@dataset_dir",
            "table": "@labels",
            "classes": "@classes",
        },
        "key_metric": {
            "auroc": {
                "_target_": "monai.handlers.ROCAUC",
                "output_transform": "$from_engine(['pred', 'label'])",
            }
        },
        "evaluator#key_val_metric": "@key_metric",
        "+handlers": [{"_target_": "monai.handlers.MetricsSaver", "save_dir": "@output_dir"}],
        "evaluate": ["$@evaluator.run()"],
    }


def _metadata(problem: Problem, card: Mapping[str, Any]) -> dict[str, Any]:
    size = [problem.image_size, problem.image_size]
    image = {"type": "image", "format": "magnitude", "modality": "n/a", "spatial_shape": size, "value_range": [0, 1]}
    image |= _channels(("grey",) if problem.channels == 1 else ("red", "green", "blue"))
    output = {"type": "probabilities", "format": "classes", "spatial_shape": [], "value_range": []}
    output |= _channels(problem.classes)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "changelog": {VERSION: "exported from a run"},
        "monai_version": version("monai"),
        "pytorch_version": torch.__version__.partition("+")[0],
        "numpy_version": numpy.__version__,
        "required_packages_version": {name: version(name) for name in ("pillow", "pydicom")},
        "task": f"{problem.kind.activity} {pluralize(len(problem.classes), problem.kind.noun)}",
        "description": f"{problem.backbone} trained by {card['training']['method']} at {card['data']['sites']} sites",
        "authors": "not stated",
        "copyright": "not stated",
        "data_source": problem.dataset,
        "data_type": "image",
        "intended_use": card["intended_use"],
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": output}},
    }


def _channels(names: Sequence[str]) -> dict[str, Any]:
    definition = {str(number): name for number, name in enumerate(names)}
    return {"num_channels": len(names), "dtype": "float32", "is_patch_data": False, "channel_def": definition}
