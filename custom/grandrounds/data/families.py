"""The package's data sets by name, with their options; those of plug-ins are registered by ``gr.register_dataset``.

This module imports neither torch nor a reader, so that the help of the command line appears at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from grandrounds.checks import did_you_mean
from grandrounds.data.datasets.own_options import FolderOptions, ManifestOptions, OwnImageOptions
from grandrounds.data.options import MUTUAL_DIVISION, MalignancyOptions, MutualOptions, PartitionOptions
from grandrounds.errors import ConfigurationError
from grandrounds.plugins import Registry

GroupBy = Literal["lesion", "image"]


@dataclass(frozen=True, kw_only=True)
class CellOptions(MutualOptions):
    """Options of data sets that have one source, such as blood cells."""

    scheme: Annotated[str, MUTUAL_DIVISION] = "mdhfl"


@dataclass(frozen=True, kw_only=True)
class SkinOptions(MutualOptions):
    """Options of HAM10000."""

    scheme: Annotated[str, MUTUAL_DIVISION] = "sites"
    group_by: Annotated[GroupBy, "keep lesions whole, or divide image by image (FedIRM paper)"] = "lesion"


DATASETS: Mapping[str, type[PartitionOptions]] = MappingProxyType(
    {"ham10000": SkinOptions, "ham10000_malignancy": MalignancyOptions, "pbc": CellOptions}
)
"""The options of each published data set, by its name."""
OWN_SOURCES: Mapping[str, type[PartitionOptions]] = MappingProxyType(
    {"folder": FolderOptions, "manifest": ManifestOptions}
)
"""The options of images of one's own, by what their source is."""


PLUGIN = "examples/published_data"
OF_PLUGIN = (
    *("isic2018", "isic2020", "lesions", "rsna_ich", "matek19", "mll23", "bloodmnist", "cifar10"),
    *("inbreast", "cbis_ddsm", "cmmd", "mini_mias", "mammograms"),
)
"""Published data sets that a plug-in of the repository reads."""


def options_class(dataset: str, groups: Mapping[str, type[PartitionOptions]]) -> type[PartitionOptions]:
    """The options of a data set by name.

    Raises:
        ConfigurationError: if there is none of this name; where the plug-in has one, it is named.
    """
    if dataset in groups:
        return groups[dataset]
    if dataset in OF_PLUGIN:
        raise ConfigurationError(
            f"data set {dataset} is in the plug-in {PLUGIN}: set GRANDROUNDS_PLUGINS=published_data PYTHONPATH={PLUGIN}, or "
            "read its images by grandrounds import"
        )
    hint = did_you_mean(str(dataset), groups) or "; images of your own: grandrounds import FOLDER --out DIR"
    raise ConfigurationError(f"dataset must be one of {', '.join(groups)}, got {dataset!r}{hint}")


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
    group = options_class(dataset, groups)
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items() if value is not None
    }
    known = {field.name: field.default is MISSING for field in fields(group)}
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known) or f"; leave {name} out"
            raise ConfigurationError(f"data set {dataset} has no option {name}{hint}")
    for name, required in known.items():
        if required and name not in given:
            raise ConfigurationError(f"data set {dataset} needs the option {name}")
    return group(**given)


Reader = Callable[..., Any]
"""From the folder or archive of the images and the options to a data set, see :func:`register_dataset`."""


@dataclass(frozen=True, kw_only=True)
class ReaderOptions(OwnImageOptions):
    """Options of a plug-in's data set that is a table of images; a plug-in may derive its own from these."""


class OwnDataset(NamedTuple):
    """A registered data set: its reader, the group of its options, and one line about it."""

    read: Reader
    options: type[PartitionOptions]
    layout: str


OWN_DATASETS: Registry[OwnDataset] = Registry("data set")


def register_dataset(name: str, *, options: type[PartitionOptions] = ReaderOptions) -> Callable[[Reader], Reader]:
    """Register a reader of a data set, for ``grandrounds partition NAME`` and ``gr.partition``; use it as a decorator.

    Args:
        name: lower-case letters, digits and ``_``; none of the package's own.
        options: a frozen dataclass derived from ``ReaderOptions``, if the reader has options of its own; or from
            ``PartitionOptions`` for a published data set, whose reader gives a ``ReadDataset`` in place of rows.

    Returns:
        A decorator of a function that takes the folder (or archive) of the images and the options, and gives a row for each
        image: ``image``, its name below that folder, and ``label``, empty if unknown; optionally ``patient``, ``site``,
        ``split`` (train, val or test), ``lesion``, ``source`` and ``labelled``. Further columns become subgroups of
        reports. The first line of its docstring is the help of the command. A function with a parameter ``progress`` gets
        what to call with the number of files read and of all files, or None.

    Raises:
        ConfigurationError: if the name is taken or has other characters, or the options are of another kind.

    Example::

        @register_dataset("clinic")
        def clinic(root, options):
            for path in sorted(root.glob("*/*.png")):
                yield {"image": f"{path.parent.name}/{path.name}", "label": path.stem.partition("_")[0]}
    """
    OWN_DATASETS.require_name(name)
    if not isinstance(options, type) or not issubclass(options, PartitionOptions):
        raise ConfigurationError(
            f"data set {name}: options {options!r} must be a class derived from ReaderOptions or PartitionOptions"
        )

    def register(reader: Reader) -> Reader:
        layout = (reader.__doc__ or "Data set of a plug-in.").strip().partition("\n")[0]
        OWN_DATASETS.add(name, OwnDataset(reader, options, layout), reader)
        return reader

    return register


def own_datasets() -> Mapping[str, OwnDataset]:
    """All registered data sets, those of installed plug-ins included.

    Raises:
        ConfigurationError: if a plug-in cannot be imported, or takes a name of the package.
    """
    return OWN_DATASETS.all({*DATASETS, *OWN_SOURCES})


def dataset_options() -> dict[str, type[PartitionOptions]]:
    """The options of each published data set, by its name: the package's and those of plug-ins."""
    return {**DATASETS, **{name: own.options for name, own in own_datasets().items()}}
