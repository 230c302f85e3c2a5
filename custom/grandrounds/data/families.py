"""The package's data sets by name, with their options; those of plug-ins are registered by ``gr.register_dataset``.

This module imports neither torch nor a reader, so that the help of the command line appears at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from types import MappingProxyType
from typing import Annotated, Any, Literal

from grandrounds.data.datasets.own_options import FolderOptions, ManifestOptions
from grandrounds.data.options import MUTUAL_DIVISION, MalignancyOptions, MutualOptions, PartitionOptions
from grandrounds.errors import ConfigurationError

GroupBy = Literal["lesion", "image"]


@dataclass(frozen=True, kw_only=True)
class CellOptions(MutualOptions):
    """Options of blood cells and of CIFAR-10, which have one source."""

    scheme: Annotated[str, MUTUAL_DIVISION] = "mdhfl"


@dataclass(frozen=True, kw_only=True)
class SkinOptions(MutualOptions):
    """Options of HAM10000."""

    scheme: Annotated[str, MUTUAL_DIVISION] = "sites"
    group_by: Annotated[GroupBy, "keep lesions whole, or divide image by image (FedIRM paper)"] = "lesion"


DATASETS: Mapping[str, type[PartitionOptions]] = MappingProxyType(
    {"ham10000": SkinOptions, "ham10000_malignancy": MalignancyOptions, "pbc": CellOptions, "cifar10": CellOptions}
)
"""The options of each published data set, by its name."""
OWN_SOURCES: Mapping[str, type[PartitionOptions]] = MappingProxyType(
    {"folder": FolderOptions, "manifest": ManifestOptions}
)
"""The options of images of one's own, by what their source is."""


def partition_options(
    dataset: str, options: Mapping[str, Any], groups: Mapping[str, type[PartitionOptions]] = DATASETS
) -> PartitionOptions:
    """The checked options of a data set by name; None is the default, and a list becomes a tuple.

    Args:
        dataset: its name.
        options: its options by name.
        groups: the options of each data set that there is.

    Raises:
        ConfigurationError: if the data set or an option is unknown, a value does not fit or a required one is missing.
    """
    group = groups.get(dataset)
    if group is None:
        raise ConfigurationError(f"dataset must be one of {', '.join(groups)}, got {dataset!r}")
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items() if value is not None
    }
    known = {field.name: field.default is MISSING for field in fields(group)}
    for name in options:
        if name not in known:
            raise ConfigurationError(f"data set {dataset} has no option {name}")
    for name, required in known.items():
        if required and name not in given:
            raise ConfigurationError(f"data set {dataset} needs the option {name}")
    return group(**given)
