"""The data sets that can be divided, by name: how each is read, and its name in jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grandrounds.data.datasets.blood import (
    BLOOD_CELL_CLASSES,
    PBC_CLASSES,
    read_bloodmnist,
    read_matek19,
    read_mll23,
    read_pbc,
)
from grandrounds.data.datasets.cifar10 import CIFAR10_CLASSES, read_cifar10
from grandrounds.data.datasets.dermoscopy import (
    HAM10000_CLASSES,
    ISIC2018_CLASSES,
    ISIC2020_CLASSES,
    by_malignancy,
    read_ham10000,
    read_isic2018,
    read_isic2020,
)
from grandrounds.data.datasets.lesions import LESION_CLASSES, read_lesions
from grandrounds.data.datasets.mammography.collection import COLLECTION, MAMMOGRAPHY, read_mammography
from grandrounds.data.datasets.mammography.options import MammographyOptions
from grandrounds.data.datasets.mammography.records import vocabulary
from grandrounds.data.datasets.own_images import (
    OwnImages,
    images_of_rows,
    read_folder,
    read_image_table,
    vocabulary_of,
    with_drawn_splits,
)
from grandrounds.data.datasets.own_options import FolderOptions, ManifestOptions, OwnImageOptions
from grandrounds.data.datasets.published import MALIGNANCY_CLASSES
from grandrounds.data.datasets.rsna_ich import ANY, RSNA_ICH_CLASSES, Progress, read_rsna_ich
from grandrounds.data.datasets.settled import settled_images
from grandrounds.data.families import CtOptions, LesionOptions, SkinOptions
from grandrounds.data.images.dicom import HAEMORRHAGE_WINDOWS
from grandrounds.data.images.files.reading import AS_IN_FILES, Reading, windows_from
from grandrounds.data.manifest import Record
from grandrounds.data.options import PartitionOptions
from grandrounds.data.own_datasets import own_datasets
from grandrounds.data.tables import Table
from grandrounds.errors import ConfigurationError, DataError, GrandRoundsError
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import FINDINGS, SINGLE

JOB_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "ham10000": "skin",
        "isic2018": "isic2018",
        "lesions": "lesions",
        "isic2020": "isic2020",
        "rsna_ich": "ich",
        **dict.fromkeys(("matek19", "mll23", "pbc", "bloodmnist"), "cells"),
        "cifar10": "cifar10",
        "ham10000_malignancy": "skin_malignancy",
        **dict.fromkeys(MAMMOGRAPHY, COLLECTION),
    }
)
"""Names of the data sets in jobs; images of one's own are named by an option."""


@dataclass(frozen=True)
class ReadDataset:
    """A data set as it was read.

    ``images`` is their folder or archive, ``facts`` are further entries of the partition's description, ``reading`` is how
    the sites read the image files. ``sites`` is the site of each record, where the data set names them; ``splits`` is
    whether the splits of the records are to be kept, ``task`` what their labels are.
    """

    records: tuple[Record, ...]
    images: Path
    classes: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    reading: Reading = AS_IN_FILES
    name: str = ""
    sites: tuple[str, ...] = ()
    splits: bool = False
    task: Task = SINGLE


def read_dataset(dataset: str, root: Path, options: PartitionOptions, progress: Progress | None = None) -> ReadDataset:
    """Read a data set by its name; ``progress`` gets the number of headers read and of all headers.

    Raises:
        ConfigurationError: if the root does not exist or an option does not fit the data set.
        DataError: if the data set is incomplete or inconsistent.
    """
    if not root.exists():
        raise ConfigurationError(f"root {root} does not exist; name the folder of the images")
    read = _read(dataset, root, options, progress)
    return replace(read, name=read.name or JOB_NAMES[dataset])


def _read(dataset: str, root: Path, options: PartitionOptions, progress: Progress | None) -> ReadDataset:
    if isinstance(options, OwnImageOptions):
        return _own_images(dataset, root, options)
    if isinstance(options, LesionOptions):
        return _lesions(root, options)
    if isinstance(options, CtOptions):
        return _rsna_ich(root, options, progress)
    if isinstance(options, MammographyOptions):
        return _mammograms(dataset, root, options, progress)
    if isinstance(options, SkinOptions):
        return _skin(dataset, root, options)
    return READERS[dataset](root)


def _skin(dataset: str, root: Path, options: SkinOptions) -> ReadDataset:
    """HAM10000 or ISIC 2018; divided image by image, they lose their lesions, because these do not stay whole."""
    by_lesion = options.group_by == "lesion"
    if dataset == "isic2018":
        read = ReadDataset(read_isic2018(root, with_lesions=by_lesion), root, ISIC2018_CLASSES)
    else:
        read = ReadDataset(*read_ham10000(root), HAM10000_CLASSES)
    if by_lesion:
        return read
    records = tuple(replace(record, lesion="") for record in read.records)
    return replace(read, records=records, facts={"group_by": options.group_by})


def _malignancy(root: Path) -> ReadDataset:
    records, images = read_ham10000(root)
    return ReadDataset(by_malignancy(records), images, MALIGNANCY_CLASSES)


def _cells(read: Callable[[Path], tuple[tuple[Record, ...], dict[str, int]]], root: Path) -> ReadDataset:
    records, left_out = read(root)
    return ReadDataset(records, root, BLOOD_CELL_CLASSES, {"left_out": left_out})


READERS: Mapping[str, Callable[[Path], ReadDataset]] = MappingProxyType(
    {
        "isic2020": lambda root: ReadDataset(read_isic2020(root), root, ISIC2020_CLASSES),
        "matek19": partial(_cells, read_matek19),
        "mll23": partial(_cells, read_mll23),
        "pbc": lambda root: ReadDataset(*read_pbc(root), PBC_CLASSES),
        "bloodmnist": lambda root: ReadDataset(*read_bloodmnist(root), PBC_CLASSES),
        "cifar10": lambda root: ReadDataset(*read_cifar10(root), CIFAR10_CLASSES),
        "ham10000_malignancy": _malignancy,
    }
)
"""How the data sets without options of their own are read."""


def _lesions(root: Path, options: LesionOptions) -> ReadDataset:
    records, removed = read_lesions(root, options.variant)
    copies = {"removed_copies": removed._asdict()} if options.variant == "clean" else {}
    return ReadDataset(records, root, LESION_CLASSES, {"variant": options.variant, **copies})


def _rsna_ich(root: Path, options: CtOptions, progress: Progress | None) -> ReadDataset:
    reading = Reading(windows_from(options.windows, "windows") if options.windows else HAEMORRHAGE_WINDOWS)
    records, counts = read_rsna_ich(root, options, progress)
    facts = {"several": options.several, "slices": options.slices, "in_the_table": counts}
    if options.several == "keep":
        return ReadDataset(records, root, (*RSNA_ICH_CLASSES, ANY), facts, reading, task=FINDINGS)
    return ReadDataset(records, root, RSNA_ICH_CLASSES, facts, reading)


def _mammograms(dataset: str, root: Path, options: MammographyOptions, progress: Progress | None) -> ReadDataset:
    records, images, facts = read_mammography(dataset, root, options, progress)
    classes = vocabulary(facts.get("normals", "benign"))
    return ReadDataset(records, images, classes, facts, Reading(preprocess="mammogram"))


def _own_images(dataset: str, root: Path, options: OwnImageOptions) -> ReadDataset:
    if isinstance(options, ManifestOptions):
        found = read_image_table(root, options)
    elif isinstance(options, FolderOptions):
        found = read_folder(root, options)
    else:
        found = _of_plugin(dataset, root, options)
    if options.splits == "draw":
        found = with_drawn_splits(found)
    found, facts = settled_images(found, options, str(getattr(options, "manifest", root)))
    windows = windows_from(options.windows, "windows") if options.windows else ()
    return ReadDataset(
        found.records,
        found.root,
        vocabulary_of(found.records, options.classes, options.kind),
        {**facts, **found.account.facts()},
        Reading(windows, options.preprocess, options.bits),
        options.dataset_name,
        found.sites,
        found.splits,
        options.kind,
    )


def _of_plugin(dataset: str, root: Path, options: OwnImageOptions) -> OwnImages:
    try:
        rows = [
            {name: str(value) for name, value in row.items()} for row in own_datasets()[dataset].read(root, options)
        ]
    except (GrandRoundsError, OSError):
        raise
    except Exception as error:  # a plug-in is foreign code
        raise DataError(f"the reader of data set {dataset} failed ({type(error).__name__}: {error})") from error
    for column in ("image", "label"):
        if not rows or any(column not in row for row in rows):
            raise DataError(f"the reader of data set {dataset} gives no row, or one without {column!r}")
    return images_of_rows(Table(f"data set {dataset}", tuple(enumerate(rows, start=1))), root, options)
