"""The data sets that can be divided, by name, and the options of each family.

This module imports neither torch nor a reader, so that the help of the command line appears at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from grandrounds.data.keys import KeyChoices
from grandrounds.data.options import (
    DIVISION,
    MUTUAL_DIVISION,
    MutualOptions,
    PartitionOptions,
    SyntheticDevice,
)
from grandrounds.data.own_schemes import SCHEME_NAMES
from grandrounds.errors import ConfigurationError
from grandrounds.option_annotations import Min, Range
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE, task_named

GroupBy = Literal["lesion", "image"]
Variant = Literal["paper", "clean"]
Several = Literal["drop", "first", "keep"]
ClientPartition = Literal["patient", "slice"]
Normals = Literal["benign", "class", "drop"]
BiradsThree = Literal["malignant", "benign", "drop"]
Preprocess = Literal["none", "mammogram", SyntheticDevice]
"""Mammograms are cropped, turned and padded; a synthetic device retakes an image after resizing."""
Splits = Literal["keep", "draw"]
Layout = Literal["auto", "class", "site/class", "class/patient"]
Windows = tuple[tuple[float, float], ...]

OWN_DIVISION = (
    f"sites named by folders or the column site (given), these or iid (auto), {MUTUAL_DIVISION}, or FedPerl's ten clients "
    "(fedperl)"
)


@dataclass(frozen=True, kw_only=True)
class CellOptions(MutualOptions):
    """Options of blood cells and of CIFAR-10, which have one source."""

    scheme: Annotated[str, MUTUAL_DIVISION] = "mdhfl"


@dataclass(frozen=True, kw_only=True)
class SkinOptions(MutualOptions):
    """Options of HAM10000."""

    scheme: Annotated[str, MUTUAL_DIVISION] = "sites"
    group_by: Annotated[GroupBy, "keep lesions whole, or divide image by image (FedIRM paper)"] = "lesion"


@dataclass(frozen=True, kw_only=True)
class Isic2018Options(SkinOptions):
    """Options of ISIC 2018."""

    scheme: Annotated[str, MUTUAL_DIVISION] = "iid"


@dataclass(frozen=True, kw_only=True)
class Isic2020Options(PartitionOptions):
    """Options of ISIC 2020."""

    scheme: Annotated[str, DIVISION] = "external"


@dataclass(frozen=True, kw_only=True)
class LesionOptions(PartitionOptions):
    """Options of the four joined data sets of skin lesions."""

    schemes: ClassVar[tuple[str, ...]] = ("sites", "dirichlet", "iid", "fedperl", "external")
    scheme: Annotated[str, f"{DIVISION}, or FedPerl's ten clients (fedperl)"] = "sites"
    variant: Annotated[Variant, "without images that two data sets share, or with them (paper)"] = "clean"


@dataclass(frozen=True, kw_only=True)
class CtOptions(PartitionOptions):
    """Options of RSNA-ICH."""

    scheme: Annotated[str, DIVISION] = "iid"
    several: Annotated[Several, "drop slices with several subtypes, take their first, or keep all as findings"] = "drop"
    slices: Annotated[int, "number of slices to draw, patient by patient", Min(1)] = 25_000
    patients: Annotated[Path | None, "table image,patient, completed from headers; ROOT/patients.csv"] = None
    client_partition: Annotated[ClientPartition, "for iid: a site gets patients, or slices (FedIRM paper)"] = "patient"
    windows: Annotated[Windows, "CENTRE:WIDTH,... of the channels in Hounsfield units; three by default"] = ()

    def check(self) -> None:
        """Refuse options that contradict each other or the scheme."""
        super().check()
        if self.client_partition == "slice" and self.scheme != "iid":
            raise ConfigurationError(f"client_partition slice is for the scheme iid, got {self.scheme}")

    @property
    def shares_patients(self) -> bool:
        """Whether a patient's images may be at several sites, as in the FedIRM paper."""
        return self.client_partition == "slice"


@dataclass(frozen=True, kw_only=True)
class MalignancyOptions(PartitionOptions):
    """Options of benign and malignant images: cancer is rare in them, so splits are drawn class by class."""

    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"sites": 4, "labelled": 1.0, "validation": 0.1, "test": 0.2}
    )
    scheme: Annotated[str, DIVISION] = "sites"


@dataclass(frozen=True, kw_only=True)
class MammographyOptions(MalignancyOptions):
    """Options of mammograms."""

    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({**MalignancyOptions.defaults, "sites": 3})


@dataclass(frozen=True, kw_only=True)
class ScreeningOptions(MammographyOptions):
    """Options of mammograms of which some have no finding."""

    normals: Annotated[Normals, "images without a finding are benign, a separate class, or dropped"] = "benign"


@dataclass(frozen=True, kw_only=True)
class InbreastOptions(ScreeningOptions):
    """Options of INbreast."""

    birads_3: Annotated[BiradsThree, "what BI-RADS 3 counts as; malignant in the Fed-Align-CL paper"] = "malignant"


@dataclass(frozen=True, kw_only=True)
class CbisDdsmOptions(MammographyOptions):
    """Options of CBIS-DDSM."""

    published_test: Annotated[bool, "use the published test set, less the patients who are in training too"] = False

    @property
    def shares(self) -> dict[str, float]:
        """How each site divides its images; those of the published test set are not divided."""
        return {**super().shares, "test": 0.0} if self.published_test else super().shares

    def check(self) -> None:
        """Refuse options that contradict each other or the scheme."""
        super().check()
        if self.published_test and self.test is not None:
            raise ConfigurationError("published_test defines the test images; leave test out")


@dataclass(frozen=True, kw_only=True)
class MiniMiasOptions(ScreeningOptions):
    """Options of mini-MIAS."""

    simulated_vendors: Annotated[Path | None, "empty folder for films of three simulated vendors, the sites"] = None


@dataclass(frozen=True, kw_only=True)
class MammogramsOptions(InbreastOptions, CbisDdsmOptions):
    """Options of several mammography data sets together."""


@dataclass(frozen=True, kw_only=True)
class OwnImageOptions(MutualOptions):
    """Options of images of one's own, whichever way they come: all labels are used, and splits are drawn class by class."""

    defaults: ClassVar[Mapping[str, Any]] = MalignancyOptions.defaults
    scheme: Annotated[str, OWN_DIVISION] = "auto"
    schemes: ClassVar[tuple[str, ...]] = SCHEME_NAMES
    dataset_name: Annotated[str, "name of the data set in jobs"] = "images"
    classes: Annotated[tuple[str, ...], "vocabulary; by default the labels that occur"] = ()
    task: Annotated[str, "single: one class for each image; multi: findings in the column label, effusion|mass"] = (
        SINGLE.name
    )
    label_map: Annotated[tuple[str, ...], "labels to replace, OLD=NEW,...; without NEW the images are left out"] = ()
    patient_pattern: Annotated[str, "regular expression over an image's name, its first group is the patient"] = ""
    merge: Annotated[
        tuple[str, ...], "near names that are one: patient, or label:Nevus=nevus; label:none= is missing"
    ] = ()
    distinct: Annotated[tuple[str, ...], "near names that are different: patient, or label:none for one name"] = ()
    splits: Annotated[Splits, "keep the images' own splits where there are some, or draw them"] = "keep"
    skip_unusable: Annotated[bool, "leave out rows of a table whose image is missing or cannot be used"] = False
    windows: Annotated[Windows, "CT slices: CENTRE:WIDTH,... of the channels in Hounsfield units"] = ()
    preprocess: Annotated[Preprocess, "crop, turn and pad mammograms, or retake images with a synthetic device"] = (
        "none"
    )
    bits: Annotated[
        int, "bits of grey images of more than 8, such as 12 for values up to 4095; 0: their files say it", Range(0, 16)
    ] = 0

    def check(self) -> None:
        """Refuse options that contradict each other or the scheme."""
        super().check()
        if not self.dataset_name:
            raise ConfigurationError("dataset_name must not be empty: jobs find the data set by it")
        if self.windows and self.preprocess != "none":
            raise ConfigurationError("windows are for CT and preprocess is for other images; leave one of them out")
        if 0 < self.bits <= 8:
            raise ConfigurationError(f"bits is for grey images of more than 8 bits, got {self.bits}; leave it out")
        if self.label_map or self.scheme == "mdhfl":
            self.kind.require_exclusive("label_map or the scheme mdhfl", "leave them out")
        _ = self.choices

    @property
    def choices(self) -> KeyChoices:
        """What was said about near names."""
        return KeyChoices(tuple(self.merge), tuple(self.distinct))

    @property
    def kind(self) -> Task:
        """What a label is."""
        return task_named(self.task)


@dataclass(frozen=True, kw_only=True)
class ManifestOptions(OwnImageOptions):
    """Options of images that a table lists."""

    manifest: Annotated[Path, "table that lists the images: CSV with any separator, .xlsx or Parquet"]
    columns: Annotated[tuple[str, ...], "headings of the table's columns, label=Diagnose,patient=Fall,..."] = ()
    sheet: Annotated[str, "sheet of an .xlsx file that has several"] = ""


@dataclass(frozen=True, kw_only=True)
class FolderOptions(OwnImageOptions):
    """Options of a folder whose sub-folders are classes, or sites with classes."""

    layout: Annotated[Layout, "what the sub-folders are; auto: class or site/class"] = "auto"
    patient_tag: Annotated[str, "DICOM keyword of the patient; PatientID where all images are DICOM"] = ""

    def check(self) -> None:
        """Refuse options that contradict each other or the layout."""
        super().check()
        self.kind.require_exclusive("a folder, which gives an image one class", "list the images in a manifest")


DATASETS: Mapping[str, type[PartitionOptions]] = MappingProxyType(
    {
        "ham10000": SkinOptions,
        "isic2018": Isic2018Options,
        "lesions": LesionOptions,
        "isic2020": Isic2020Options,
        "rsna_ich": CtOptions,
        "matek19": CellOptions,
        "mll23": CellOptions,
        "pbc": CellOptions,
        "bloodmnist": CellOptions,
        "cifar10": CellOptions,
        "ham10000_malignancy": MalignancyOptions,
        "inbreast": InbreastOptions,
        "cbis_ddsm": CbisDdsmOptions,
        "cmmd": MammographyOptions,
        "mini_mias": MiniMiasOptions,
        "mammograms": MammogramsOptions,
        "folder": FolderOptions,
        "manifest": ManifestOptions,
    }
)
"""The options of each data set, by its name."""


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
