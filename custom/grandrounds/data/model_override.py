"""The network that a site chooses for itself, where the method lets sites have their own models.

{"datasets": {"skin": {...}},
 "models": {"skin": {"backbone": "resnet10", "norm": "group", "dropout": 0.2, "weights": "own.pt"}}}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.errors import ConfigurationError
from grandrounds.files import require_object

NORMS = ("batch", "group")
KEYS = ("backbone", "dropout", "norm", "weights")
IMAGENET = "imagenet"


@dataclass(frozen=True)
class ModelOverride:
    """How a site's network differs from the job's.

    Attributes:
        where: the file and the entry, for errors.
        changes: ``backbone``, ``norm``, ``dropout`` and ``weights``, as far as they are given; a dropout of None is the
            backbone's own, and weights are what training starts from: "imagenet", or the path of a file.
    """

    where: str
    changes: Mapping[str, Any]


def overrides_from(models: Any, datasets: Collection[str], path: Path) -> dict[str, ModelOverride]:
    """Read the entry ``models`` of a ``grandrounds.json``. Whether a backbone exists is not known here.

    Args:
        models: the entry as it was read.
        datasets: names of the data sets in the same file.
        path: of the file, for errors.

    Raises:
        ConfigurationError: naming the file and the key, what was expected and what came.

    Example:
        >>> overrides_from({"skin": {"backbone": "resnet10"}}, ["skin"], Path("grandrounds.json"))["skin"].changes
        {'backbone': 'resnet10'}
    """
    if not isinstance(models, Mapping):
        raise ConfigurationError(f"{path}: models must be an object of models by data set, got {models!r}")
    for name in models:
        if name not in datasets:
            known = ", ".join(sorted(datasets)) or "none"
            raise ConfigurationError(
                f"{path}: models.{name}: there is no such data set in this file (there are: {known})"
            )
    return {name: _override(entry, f"{path}: models.{name}", path.parent) for name, entry in models.items()}


def _override(entry: Any, where: str, folder: Path) -> ModelOverride:
    require_object(entry, where, optional=KEYS)
    backbone, norm, dropout = entry.get("backbone", ""), entry.get("norm", NORMS[0]), entry.get("dropout")
    if not isinstance(backbone, str):
        raise ConfigurationError(f"{where}.backbone must be a name, got {backbone!r}")
    if norm not in NORMS:
        raise ConfigurationError(f"{where}.norm must be {' or '.join(NORMS)}, got {norm!r}")
    numeric = isinstance(dropout, int | float) and not isinstance(dropout, bool)
    if dropout is not None and not (numeric and 0 <= dropout < 1):
        raise ConfigurationError(f"{where}.dropout must be a number from 0 to below 1, or null, got {dropout!r}")
    return ModelOverride(where, {**entry, **_weights(entry.get("weights"), where, folder)})


def _weights(weights: Any, where: str, folder: Path) -> dict[str, str]:
    """Where weights are; nothing if none are given."""
    if weights is None or weights == IMAGENET:
        return {}
    if not isinstance(weights, str) or not (folder / weights).is_file():
        raise ConfigurationError(
            f"{where}.weights must be {IMAGENET} or the path of a file, from the folder of this file; got {weights!r}"
        )
    return {"weights": str(folder / weights)}
