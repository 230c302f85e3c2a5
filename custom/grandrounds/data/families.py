"""The data sets that can be divided, by name, and the options of each family.

This module imports neither torch nor a reader, so that the help of the command line appears at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from grandrounds.data.datasets.mammography.options import (
    CbisDdsmOptions,
    InbreastOptions,
    MalignancyOptions,
    MammogramsOptions,
    MammographyOptions,
    MiniMiasOptions,
)
from grandrounds.data.datasets.own_options import FolderOptions, ManifestOptions
from grandrounds.data.options import (
    DIVISION,
    MUTUAL_DIVISION,
    MutualOptions,
    PartitionOptions,
    Windows,
)
from grandrounds.errors import ConfigurationError
from grandrounds.option_annotations import Min

GroupBy = Literal["lesion", "image"]
Variant = Literal["paper", "clean"]
Several = Literal["drop", "first", "keep"]
ClientPartition = Literal["patient", "slice"]


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
