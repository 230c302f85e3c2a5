"""Options of the mammography data sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from grandrounds.data.options import MalignancyOptions
from grandrounds.errors import ConfigurationError

Normals = Literal["benign", "class", "drop"]

BiradsThree = Literal["malignant", "benign", "drop"]


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
