"""What can be chosen of a data set before it is divided, and which data set has which choice.

The data sets that can be divided, by name: how each is read, and how jobs call it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

from grandrounds.data.datasets.blood import (
    BLOOD_CELL_CLASSES,
    PBC_CLASSES,
    read_bloodmnist,
    read_matek19,
    read_mll23,
    read_pbc,
)
from grandrounds.data.datasets.cifar10 import CIFAR10_CLASSES, read_cifar10
from grandrounds.data.datasets.malignancy import MALIGNANCY_CLASSES, by_malignancy
from grandrounds.data.datasets.mammography.collection import (
    COLLECTION,
    MAMMOGRAPHY,
    MammographyOptions,
    read_mammography,
)
from grandrounds.data.datasets.mammography.inbreast import BiradsThree
from grandrounds.data.datasets.mammography.records import Normals
from grandrounds.data.datasets.rsna_ich import RSNA_ICH_CLASSES, SLICES, Multi, Progress, read_rsna_ich
from grandrounds.data.datasets.skin.classes import LESION_CLASSES
from grandrounds.data.datasets.skin.ham10000 import HAM10000_CLASSES, read_ham10000
from grandrounds.data.datasets.skin.isic2018 import ISIC2018_CLASSES, read_isic2018
from grandrounds.data.datasets.skin.isic2020 import ISIC2020_CLASSES, read_isic2020
from grandrounds.data.datasets.skin.joint import Variant, read_lesions
from grandrounds.data.images.ct_windows import HAEMORRHAGE_WINDOWS, windows_from
from grandrounds.data.images.dicom import Window
from grandrounds.data.images.preprocessing import Preprocess, preprocess_from
from grandrounds.data.manifest import Record, read_manifest
from grandrounds.errors import ConfigurationError
from grandrounds.options import require_min
from grandrounds.ordering import natural_sorted
from grandrounds.seeding import numpy_generator

Dataset = Literal[
    "ham10000",
    "isic2018",
    "lesions",
    "isic2020",
    "rsna_ich",
    "matek19",
    "mll23",
    "pbc",
    "bloodmnist",
    "cifar10",
    "ham10000_malignancy",
    "inbreast",
    "cbis_ddsm",
    "cmmd",
    "mini_mias",
    "mammograms",
    "manifest",
]
GroupBy = Literal["lesion", "image"]
ClientPartition = Literal["patient", "slice"]

OWNERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "variant": ("lesions",),
        "group_by": ("ham10000", "isic2018"),
        "multi": ("rsna_ich",),
        "slices": ("rsna_ich",),
        "patients": ("rsna_ich",),
        "client_partition": ("rsna_ich",),
        "windows": ("rsna_ich", "manifest"),
        "normals": ("inbreast", "mini_mias", "mammograms"),
        "birads_3": ("inbreast", "mammograms"),
        "published_test": ("cbis_ddsm", "mammograms"),
        "simulated_vendors": ("mini_mias",),
        "preprocess": ("manifest",),
    }
)
"""The data sets for which a choice means something."""

MALIGNANCY = ("ham10000_malignancy", *MAMMOGRAPHY)
"""The data sets of benign and malignant images: cancer is rare in them, and so splits are drawn class by class."""


@dataclass(frozen=True)
class DatasetOptions:
    """A data set's choices; the fields are the arguments of ``make_partition`` of the same names."""

    variant: Variant = "clean"
    group_by: GroupBy = "lesion"
    multi: Multi = "drop"
    slices: int = SLICES
    patients: Path | None = None
    windows: tuple[Window, ...] = ()
    normals: Normals = "benign"
    birads_3: BiradsThree = "malignant"
    published_test: bool = False
    simulated_vendors: Path | None = None
    preprocess: Preprocess = "none"

    @property
    def mammography(self) -> MammographyOptions:
        """Those of mammography data sets."""
        return MammographyOptions(self.normals, self.birads_3, self.published_test, self.simulated_vendors)

    @classmethod
    def of(cls, dataset: Dataset, arguments: Mapping[str, Any]) -> Self:
        """Complete and check choices; None stands for a default.

        Raises:
            ConfigurationError: if there are fewer than one slice, the windows are none, or two choices do not fit together.
        """
        given = {field: arguments[field] for field in cls.__dataclass_fields__ if arguments[field] is not None}
        if "windows" in given:
            given["windows"] = windows_from(given["windows"], "windows")
        elif dataset == "rsna_ich":
            given["windows"] = HAEMORRHAGE_WINDOWS
        for name in ("patients", "simulated_vendors"):
            if name in given:
                given[name] = Path(given[name])
        if "preprocess" in given:
            preprocess_from(given["preprocess"], "preprocess")
        options = cls(**given)
        require_min(options, 1, "slices")
        if options.windows and options.preprocess != "none":
            raise ConfigurationError("windows are for CT and preprocess is for mammograms; leave one of them out")
        if options.published_test and arguments["test"] is not None:
            raise ConfigurationError("published_test says what is for testing; leave test out")
        return options


def require_own_choices(dataset: Dataset, arguments: Mapping[str, Any]) -> None:
    """Refuse a choice that would have no effect on this data set, so that nobody believes it had.

    Raises:
        ConfigurationError: naming the choice and the data sets that it is for.
    """
    for name, owners in OWNERS.items():
        if arguments[name] is not None and dataset not in owners:
            of = f"the data set{'s' if len(owners) > 1 else ''} {' and '.join(owners)}"
            raise ConfigurationError(f"{name} is for {of}; leave it out for {dataset}")


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
