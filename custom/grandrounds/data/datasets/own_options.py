"""Options of images of one's own: a folder, or a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from grandrounds.checks import did_you_mean
from grandrounds.data.keys import KeyChoices
from grandrounds.data.options import MUTUAL_DIVISION, MalignancyOptions, MutualOptions, Windows
from grandrounds.data.own_schemes import SCHEME_NAMES
from grandrounds.errors import ConfigurationError
from grandrounds.options import Range
from grandrounds.protocol.names import Preprocess
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE, task_named

Splits = Literal["keep", "draw"]

OWN_DIVISION = (
    f"sites named by folders or the column site (given), these or iid (auto), {MUTUAL_DIVISION}, or FedPerl's ten clients "
    "(fedperl)"
)


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
        tuple[str, ...],
        "near names that are one: patient, or label:Nevus=nevus; label:none= is missing; image: folders may differ",
    ] = ()
    distinct: Annotated[tuple[str, ...], "near names that are different: patient, or label:none for one name"] = ()
    splits: Annotated[Splits, "keep the images' own splits where there are some, or draw them"] = "keep"
    contradictions: Annotated[
        Literal["refuse", "keep"], "lesions with two labels or two patients: refuse them, or keep them as they are"
    ] = "refuse"
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
        return KeyChoices(tuple(entry for entry in self.merge if entry != "image"), tuple(self.distinct))

    @property
    def kind(self) -> Task:
        """What a label is."""
        return task_named(self.task)


@dataclass(frozen=True, kw_only=True)
class ManifestOptions(OwnImageOptions):
    """Options of images that a table lists."""

    manifest: Annotated[Path, "table that lists the images: CSV with any separator, .xlsx, Parquet or JSON"]
    columns: Annotated[tuple[str, ...], "headings of the table's columns, label=Diagnose,patient=Fall,..."] = ()
    sheet: Annotated[str, "sheet of an .xlsx file that has several"] = ""
    metadata: Annotated[
        tuple[str, ...], "further tables or sheets, joined by image, patient or lesion; none: no table beside the first"
    ] = ()


@dataclass(frozen=True, kw_only=True)
class FolderOptions(OwnImageOptions):
    """Options of a folder whose sub-folders are classes, or sites with classes."""

    layout: Annotated[
        str,
        "what the sub-folders are: class, site/class, patient/class, class/*/patient, ...; auto: asked if it is not clear",
    ] = "auto"
    patient_tag: Annotated[str, "DICOM keyword of the patient; PatientID where all images are DICOM"] = ""

    def check(self) -> None:
        """Refuse options that contradict each other or the layout."""
        super().check()
        words = [word for word in self.layout.split("/") if word != "*"]
        known = {"class", "site", "patient", "split"}
        if self.layout != "auto" and not ("class" in words and known >= {*words} and len(words) == len({*words})):
            raise ConfigurationError(
                "layout: expected auto, or class, * and at most once site, patient and split, as in class/*/patient, got "
                f"{self.layout!r}{''.join(did_you_mean(word, known) for word in words if word not in known)}"
            )
        self.kind.require_exclusive("a folder, which gives an image one class", "list the images in a manifest")
