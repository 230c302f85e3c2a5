"""What can be chosen of a data set before it is divided, and which data set has which choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

from grandrounds.data.ct_windows import HAEMORRHAGE_WINDOWS, windows_from
from grandrounds.data.dicom import Window
from grandrounds.data.lesion_collection import Variant
from grandrounds.data.rsna_ich import SLICES
from grandrounds.data.rsna_labels import Multi
from grandrounds.errors import ConfigurationError

Dataset = Literal["ham10000", "isic2018", "lesions", "isic2020", "rsna_ich", "manifest"]
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
    }
)
"""The data sets for which a choice means something."""


@dataclass(frozen=True)
class DatasetOptions:
    """A data set's choices; the fields are the arguments of ``make_partition`` of the same names."""

    variant: Variant = "clean"
    group_by: GroupBy = "lesion"
    multi: Multi = "drop"
    slices: int = SLICES
    patients: Path | None = None
    windows: tuple[Window, ...] = ()

    @classmethod
    def of(cls, dataset: Dataset, arguments: Mapping[str, Any]) -> Self:
        """Complete and check choices; None stands for a default.

        Raises:
            ConfigurationError: if there are fewer than one slice or the windows are none.
        """
        given = {field: arguments[field] for field in cls.__dataclass_fields__ if arguments[field] is not None}
        if "windows" in given:
            given["windows"] = windows_from(given["windows"], "windows")
        elif dataset == "rsna_ich":
            given["windows"] = HAEMORRHAGE_WINDOWS
        if "patients" in given:
            given["patients"] = Path(given["patients"])
        options = cls(**given)
        if options.slices < 1:
            raise ConfigurationError(f"slices must be at least 1, got {options.slices}")
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
