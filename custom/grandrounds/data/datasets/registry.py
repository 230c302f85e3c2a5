"""How each data set is read, by its name, and what it is called in jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grandrounds.data.datasets.listed import images_of_rows, read_image_table
from grandrounds.data.datasets.own_images import OwnImages, read_folder, vocabulary_of, with_drawn_splits
from grandrounds.data.datasets.own_options import FolderOptions, ManifestOptions, OwnImageOptions
from grandrounds.data.datasets.published import (
    HAM10000_CLASSES,
    MALIGNANCY_CLASSES,
    PBC_CLASSES,
    Progress,
    ReadDataset,
    by_malignancy,
    read_ham10000,
    read_pbc,
)
from grandrounds.data.datasets.settled import settled_images
from grandrounds.data.families import SkinOptions, own_datasets
from grandrounds.data.images.files.reading import Reading, windows_from
from grandrounds.data.options import PartitionOptions
from grandrounds.data.shortcuts import telling_kinds
from grandrounds.data.tables import Table
from grandrounds.errors import ConfigurationError, DataError, GrandRoundsError


def read_dataset(dataset: str, root: Path, options: PartitionOptions, progress: Progress | None = None) -> ReadDataset:
    """Read a data set by its name; ``progress`` gets the number of headers read and of all headers.

    Raises:
        ConfigurationError: if the root does not exist or an option does not fit the data set.
        DataError: if the data set is incomplete or inconsistent.
    """
    if not root.exists():
        raise ConfigurationError(f"root {root} does not exist; name the folder of the images")
    if dataset in READERS:
        return READERS[dataset](root, options)
    if isinstance(options, OwnImageOptions):
        return _own_images(dataset, root, options)
    read = _read_by_plugin(dataset, root, options, progress)
    if not isinstance(read, ReadDataset):
        raise DataError(
            f"the reader of data set {dataset} must give a ReadDataset, or have options derived from ReaderOptions"
        )
    return replace(read, name=read.name or dataset)


def _ham10000(root: Path, options: Any) -> ReadDataset:
    return without_lesions(ReadDataset(*read_ham10000(root), HAM10000_CLASSES, name="skin"), options)


def without_lesions(read: ReadDataset, options: SkinOptions) -> ReadDataset:
    """The data set as it is divided: image by image, its records lose their lesions, because these do not stay whole."""
    if options.group_by == "lesion":
        return read
    records = tuple(replace(record, lesion="") for record in read.records)
    return replace(read, records=records, facts={"group_by": options.group_by})


def _malignancy(root: Path, _: PartitionOptions) -> ReadDataset:
    records, images = read_ham10000(root)
    return ReadDataset(by_malignancy(records), images, MALIGNANCY_CLASSES, name="skin_malignancy")


READERS: Mapping[str, Callable[[Path, PartitionOptions], ReadDataset]] = MappingProxyType(
    {
        "ham10000": _ham10000,
        "ham10000_malignancy": _malignancy,
        "pbc": lambda root, _: ReadDataset(*read_pbc(root), PBC_CLASSES, name="cells"),
    }
)
"""How the package's published data sets are read."""


def _own_images(dataset: str, root: Path, options: OwnImageOptions) -> ReadDataset:
    if isinstance(options, ManifestOptions):
        images = read_image_table(root, options)
    elif isinstance(options, FolderOptions):
        images = read_folder(root, options)
    else:
        images = _rows_of_plugin(dataset, root, options)
    if options.splits == "draw":
        images = with_drawn_splits(images)
    images, facts = settled_images(images, options, str(getattr(options, "manifest", root)))
    seen, labels = images.account.used, [record.label for record in images.records]
    kinds = {"ImageType": [seen[record.image].kind if record.image in seen else "" for record in images.records]}
    account = replace(images.account, notes=(*images.account.notes, *telling_kinds(labels, kinds)))
    windows = windows_from(options.windows, "windows") if options.windows else ()
    return ReadDataset(
        images.records,
        images.root,
        vocabulary_of(images.records, options.classes, options.kind),
        {**facts, **account.facts()},
        Reading(windows, options.preprocess, options.bits),
        options.dataset_name,
        images.sites,
        images.splits,
        options.kind,
    )


def _rows_of_plugin(dataset: str, root: Path, options: OwnImageOptions) -> OwnImages:
    rows = _read_by_plugin(dataset, root, options, None)
    for column in ("image", "label"):
        if not rows or any(column not in row for row in rows):
            raise DataError(f"the reader of data set {dataset} gives no row, or one without {column!r}")
    return images_of_rows(Table(f"data set {dataset}", tuple(enumerate(rows, start=1))), root, options)


def _read_by_plugin(dataset: str, root: Path, options: PartitionOptions, progress: Progress | None) -> Any:
    """What a plug-in's reader gives: a whole data set, or rows as text."""
    reader = own_datasets()[dataset].read
    wanted = {"progress": progress} if "progress" in inspect.signature(reader).parameters else {}
    try:
        read = reader(root, options, **wanted)
        if isinstance(read, ReadDataset):
            return read
        return [{name: str(value) for name, value in row.items()} for row in read]
    except (GrandRoundsError, OSError):
        raise
    except Exception as error:  # a plug-in is foreign code
        raise DataError(f"the reader of data set {dataset} failed ({type(error).__name__}: {error})") from error
