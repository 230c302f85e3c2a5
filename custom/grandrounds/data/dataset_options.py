"""What can be chosen of a data set before it is divided, and which data set has which choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

from grandrounds.data.ct_windows import HAEMORRHAGE_WINDOWS, windows_from
from grandrounds.data.dicom import Window
from grandrounds.data.inbreast import BiradsThree
from grandrounds.data.lesion_collection import Variant
from grandrounds.data.mammo_collection import MAMMOGRAPHY, MammographyOptions
from grandrounds.data.mammo_records import Normals
from grandrounds.data.preprocessing import Preprocess, preprocess_from
from grandrounds.data.rsna_ich import SLICES
from grandrounds.data.rsna_labels import Multi
from grandrounds.errors import ConfigurationError
from grandrounds.options import require_least

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
        for field in ("patients", "simulated_vendors"):
            if field in given:
                given[field] = Path(given[field])
        if "preprocess" in given:
            preprocess_from(given["preprocess"], "preprocess")
        options = cls(**given)
        require_least(options, 1, "slices")
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
    for field, owners in OWNERS.items():
        if arguments[field] is not None and dataset not in owners:
            of = f"the data set{'s' if len(owners) > 1 else ''} {' and '.join(owners)}"
            raise ConfigurationError(f"{field} is for {of}; leave it out for {dataset}")
