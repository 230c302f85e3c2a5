"""Data sets of plug-ins: a function that reads a folder of images, under a name for ``grandrounds partition``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from grandrounds.data.datasets.own_options import OwnImageOptions
from grandrounds.data.families import DATASETS, OWN_SOURCES
from grandrounds.data.options import PartitionOptions
from grandrounds.errors import ConfigurationError
from grandrounds.plugins import Registry

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
