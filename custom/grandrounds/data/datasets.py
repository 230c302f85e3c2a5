"""The data sets that can be divided, by name: how each is read, and how jobs call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grandrounds.data.blood_cells import BLOOD_CELL_CLASSES, read_matek19, read_mll23
from grandrounds.data.cifar10 import CIFAR10_CLASSES, read_cifar10
from grandrounds.data.dataset_options import Dataset, DatasetOptions
from grandrounds.data.dicom import Window
from grandrounds.data.ham10000 import HAM10000_CLASSES, read_ham10000
from grandrounds.data.isic2018 import ISIC2018_CLASSES, read_isic2018
from grandrounds.data.isic2020 import ISIC2020_CLASSES, read_isic2020
from grandrounds.data.lesion_collection import read_lesions
from grandrounds.data.lesions import LESION_CLASSES
from grandrounds.data.malignancy import MALIGNANCY_CLASSES, by_malignancy
from grandrounds.data.mammo_collection import COLLECTION, MAMMOGRAPHY, read_mammography
from grandrounds.data.manifest import Record, read_manifest
from grandrounds.data.pbc import PBC_CLASSES, read_bloodmnist, read_pbc
from grandrounds.data.preprocessing import Preprocess
from grandrounds.data.rsna_ich import read_rsna_ich
from grandrounds.data.rsna_labels import RSNA_ICH_CLASSES
from grandrounds.data.rsna_patients import Progress
from grandrounds.errors import ConfigurationError
from grandrounds.ordering import natural_sorted
from grandrounds.seeding import numpy_generator

# How jobs call the data sets that have a name of their own.
NAMES: Mapping[str, str] = MappingProxyType(
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

FOLDERS: Mapping[str, Callable[[Path], tuple[tuple[Record, ...], dict[str, int]]]] = MappingProxyType(
    {"matek19": read_matek19, "mll23": read_mll23}
)
FILES: Mapping[str, tuple[Callable[[Path], tuple[tuple[Record, ...], Path]], tuple[str, ...]]] = MappingProxyType(
    {
        "pbc": (read_pbc, PBC_CLASSES),
        "bloodmnist": (read_bloodmnist, PBC_CLASSES),
        "cifar10": (read_cifar10, CIFAR10_CLASSES),
    }
)


@dataclass(frozen=True)
class ReadDataset:
    """What a recipe needs to know of a data set.

    Attributes:
        records: all images.
        images: the folder or archive they are in.
        name: how jobs call the data set.
        classes: the vocabulary.
        facts: what else the partition's description says of it.
        windows: under which the sites look at its slices; empty for all but CT.
        preprocess: what the sites do to its images before resizing.
    """

    records: tuple[Record, ...]
    images: Path
    name: str
    classes: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    windows: tuple[Window, ...] = ()
    preprocess: Preprocess = "none"


def read_dataset(
    dataset: Dataset,
    root: Path,
    options: DatasetOptions,
    seed: int,
    *,
    manifest: Path | str | None = None,
    name: str | None = None,
    classes: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> ReadDataset:
    """Read a data set by its name.

    Args:
        dataset: which.
        root: its folder; for ``manifest`` the images' folder or archive.
        options: what was chosen of it.
        seed: of what is drawn while reading.
        manifest: the table of a ``manifest`` data set.
        name: how jobs call a ``manifest`` data set.
        classes: the vocabulary of a ``manifest`` data set; the labels that occur, in natural order, by default.
        progress: told how far a long reading is.

    Raises:
        ConfigurationError: if the root does not exist or the arguments do not fit the data set.
        DataError: if the data set is not as it must be.
    """
    if not root.exists():
        raise ConfigurationError(f"root {root} does not exist; name the folder of the images")
    if dataset == "manifest":
        read = _manifest(root, manifest, name, classes)
        return replace(read, windows=options.windows, preprocess=options.preprocess)
    own = NAMES[dataset]
    if manifest is not None or name is not None or classes is not None:
        raise ConfigurationError(f"{dataset} has its own manifest, name ({own}) and classes; leave these options out")
    if dataset == "lesions":
        return _lesions(root, own, options)
    if dataset == "rsna_ich":
        return _rsna_ich(root, own, options, seed, progress)
    if dataset in MAMMOGRAPHY:
        return _mammograms(dataset, root, options, seed, progress)
    return _read_alone(dataset, root, own, options)


def _read_alone(dataset: Dataset, root: Path, own: str, options: DatasetOptions) -> ReadDataset:
    """A data set that needs nothing but its folder."""
    if dataset in FOLDERS:
        records, left_out = FOLDERS[dataset](root)
        return ReadDataset(records, root, own, BLOOD_CELL_CLASSES, {"left_out": left_out})
    if dataset in FILES:
        read_files, vocabulary = FILES[dataset]
        records, images = read_files(root)
        return ReadDataset(records, images, own, vocabulary)
    if dataset == "isic2020":
        return ReadDataset(read_isic2020(root), root, own, ISIC2020_CLASSES)
    if dataset == "isic2018":
        records = read_isic2018(root, with_lesions=options.group_by == "lesion")
        return _grouped(ReadDataset(records, root, own, ISIC2018_CLASSES), options)
    records, images = read_ham10000(root)
    if dataset == "ham10000_malignancy":
        return ReadDataset(by_malignancy(records), images, own, MALIGNANCY_CLASSES)
    return _grouped(ReadDataset(records, images, own, HAM10000_CLASSES), options)


def _grouped(read: ReadDataset, options: DatasetOptions) -> ReadDataset:
    """Forget lesions where images are taken one by one: what is divided must not be said to be whole."""
    if options.group_by == "lesion":
        return read
    return replace(
        read, records=tuple(replace(record, lesion="") for record in read.records), facts={"group_by": options.group_by}
    )


def _lesions(root: Path, own: str, options: DatasetOptions) -> ReadDataset:
    variant = options.variant
    records, removed = read_lesions(root, variant)
    facts = {"variant": variant, **({"removed_copies": removed._asdict()} if variant == "clean" else {})}
    return ReadDataset(records, root, own, LESION_CLASSES, facts)


def _rsna_ich(root: Path, own: str, options: DatasetOptions, seed: int, progress: Progress | None) -> ReadDataset:
    records, counts = read_rsna_ich(
        root,
        numpy_generator(seed, "rsna_ich", "slices"),
        multi=options.multi,
        slices=options.slices,
        patients=options.patients,
        progress=progress,
    )
    facts = {"multi": options.multi, "slices": options.slices, "in_the_table": counts}
    return ReadDataset(records, root, own, RSNA_ICH_CLASSES, facts, options.windows)


def _mammograms(dataset: str, root: Path, options: DatasetOptions, seed: int, progress: Progress | None) -> ReadDataset:
    read = read_mammography(dataset, root, options.mammography, seed, progress)
    return ReadDataset(read.records, read.images, COLLECTION, read.classes, dict(read.facts), preprocess="mammogram")


def _manifest(root: Path, manifest: Path | str | None, name: str | None, classes: Sequence[str] | None) -> ReadDataset:
    if manifest is None or not name:
        raise ConfigurationError("data set manifest needs the manifest's file and the name by which jobs call the data")
    records = read_manifest(manifest, classes).records
    vocabulary = classes or natural_sorted({record.label for record in records if record.label})
    return ReadDataset(records, root, name, tuple(vocabulary))
