"""Mammograms of public data sets in one form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grandrounds.data.datasets.published import BENIGN, MALIGNANCY_CLASSES, MALIGNANT
from grandrounds.data.images.mammogram import Laterality
from grandrounds.data.manifest import Record
from published_data.mammography.options import Normals
from published_data.reading import NORMAL

Finding = Literal["normal", "benign", "malignant"]
View = Literal["CC", "MLO", ""]

BREAST_FINDINGS: tuple[Finding, ...] = (NORMAL, BENIGN, MALIGNANT)
"""From the mildest to the most severe."""

VENDORS = ("GE", "Siemens", "Hologic", "Fuji", "Philips", "Lorad", "IMS", "Planmed")


@dataclass(frozen=True, slots=True)
class Mammogram:
    """One image of a mammography data set.

    ``finding`` is the most severe one in it; laterality and view are empty when unknown; ``test`` is true if the data set
    publishes it for testing.
    """

    image: str
    finding: Finding
    patient: str
    laterality: Laterality = ""
    view: View = ""
    vendor: str = "unknown"
    test: bool = False


def most_severe(findings: Sequence[Finding]) -> Finding:
    """The most severe of some findings.

    Example:
        >>> most_severe(["benign", "malignant", "normal"])
        'malignant'
    """
    return max(findings, key=BREAST_FINDINGS.index)


def vendor_name(manufacturer: str) -> str:
    """The short name of a manufacturer, which its devices write in different ways.

    Example:
        >>> vendor_name("GE MEDICAL SYSTEMS"), vendor_name("SIEMENS"), vendor_name("Acme X-ray"), vendor_name("")
        ('GE', 'Siemens', 'Acme X-ray', 'unknown')
    """
    words = manufacturer.casefold().replace(",", " ").split()
    return next((name for name in VENDORS if name.casefold() in words), manufacturer.strip() or "unknown")


def to_records(mammograms: Sequence[Mammogram], dataset: str, normals: Normals = "benign") -> tuple[Record, ...]:
    """The records of a manifest; ``source`` is the data set and the vendor, and patients of different data sets differ.

    Returns:
        Records with the labels of :func:`vocabulary`, in split ``test`` where the data set publishes that, else ``train``.

    Example:
        >>> found = to_records([Mammogram("a.dcm", "normal", "7", vendor="GE")], "CMMD")[0]
        >>> found.label, found.patient, found.source
        ('benign', 'CMMD/7', 'CMMD/GE')
    """
    kept = [one for one in mammograms if not (one.finding == NORMAL and normals == "drop")]
    return tuple(
        Record(
            image=one.image,
            label=BENIGN if one.finding == NORMAL and normals == "benign" else one.finding,
            split="test" if one.test else "train",
            patient=f"{dataset}/{one.patient}",
            source=f"{dataset}/{one.vendor}",
        )
        for one in kept
    )


def vocabulary(normals: Normals) -> tuple[str, ...]:
    """The classes of :func:`to_records`, malignant last."""
    return tuple(BREAST_FINDINGS) if normals == "class" else MALIGNANCY_CLASSES
