"""Dermoscopic images of the ISIC challenges 2018 (task 3) and 2020.

ISIC 2018 task 3: the images of HAM10000 under the same names. N. Codella et al., "Skin lesion analysis toward melanoma
detection 2018: a challenge hosted by the International Skin Imaging Collaboration (ISIC)", arXiv:1902.03368 (CC BY-NC 4.0).
About 7,470 lesions are shown, some of them several times.

ISIC 2020: 33,126 images of 2,056 patients, benign or malignant (584). V. Rotemberg et al., "A patient-centric dataset of
images and metadata for identifying melanomas using clinical context", Scientific Data 8:34, 2021, doi:10.34970/2020-ds01
(CC BY-NC 4.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import grandrounds as gr
from grandrounds.checks import require_known_label
from grandrounds.data.datasets.published import (
    MALIGNANCY_CLASSES,
    ReadDataset,
    find_table,
    image_called,
    images_by_name,
    read_records,
)
from grandrounds.data.datasets.registry import without_lesions
from grandrounds.data.families import SkinOptions
from grandrounds.data.manifest import Record, read_table
from grandrounds.data.options import DIVISION, MUTUAL_DIVISION, PartitionOptions
from grandrounds.errors import DataError
from published_data.reading import marked_column

ISIC2018_CLASSES = ("mel", "nv", "bcc", "akiec", "bkl", "df", "vasc")
LABELS_2018 = {name.upper(): name for name in ISIC2018_CLASSES}
GROUND_TRUTH = "ISIC2018_Task3_Training_GroundTruth.csv"
GROUPINGS = "ISIC2018_Task3_Training_LesionGroupings.csv"
SOURCE_2018 = "ISIC2018"


def read_isic2018(root: Path | str, with_lesions: bool = True) -> tuple[Record, ...]:
    """Read the records of the ISIC 2018 task 3 training data in its published layout.

    That is ``ISIC2018_Task3_Training_GroundTruth.csv``, in ``root`` or in a folder of its name, and the JPEG files in
    ``ISIC2018_Task3_Training_Input`` or any other folder below. ``ISIC2018_Task3_Training_LesionGroupings.csv`` lists which
    images show one lesion; without it, and ``with_lesions``
    false, they can only be taken one by one.

    Returns:
        The records with the classes of ``ISIC2018_CLASSES``, all in split ``train``; images are paths below ``root``.

    Raises:
        DataError: if a file, column, image or value is missing or wrong; file and line are named.
    """
    root = Path(root)
    table = _table_2018(root, GROUND_TRUTH)
    lesions = _lesions_2018(root) if with_lesions else {}
    images = images_by_name(root, ".jpg")

    def record(row: dict[str, str], where: str) -> Record:
        """The record of a row."""
        if with_lesions and not lesions.get(row["image"]):
            raise DataError(f"{where}, column image: {row['image']!r} has no lesion in {GROUPINGS}; complete the table")
        image = image_called(row["image"], images, where, root)
        label = LABELS_2018[marked_column(row, tuple(LABELS_2018), where)]
        return Record(image, label, lesion=lesions.get(row["image"], ""), source=SOURCE_2018)

    return read_records(table, ("image", *LABELS_2018), record)


def _table_2018(root: Path, name: str) -> Path:
    return find_table(root, (name, f"{Path(name).stem}/{name}"), "ISIC 2018 task 3")


def _lesions_2018(root: Path) -> dict[str, str]:
    try:
        table = _table_2018(root, GROUPINGS)
    except DataError as error:
        raise DataError(
            f"{error}; without this table images can only be divided one by one (group_by image), so that one lesion may "
            "be in training and test"
        ) from error
    return {row["image"]: row["lesion_id"] for _, row in read_table(table, ("image", "lesion_id"))}


ISIC2020_CLASSES = MALIGNANCY_CLASSES
TABLES_2020 = ("ISIC_2020_Training_GroundTruth_v2.csv", "ISIC_2020_Training_GroundTruth.csv", "train.csv")
SOURCE_2020 = "ISIC2020"
TARGETS_2020 = dict(zip("01", ISIC2020_CLASSES, strict=True))


def read_isic2020(root: Path | str) -> tuple[Record, ...]:
    """Read the records of the ISIC 2020 training data in one of its published layouts.

    That is ``ISIC_2020_Training_GroundTruth_v2.csv``, which knows lesions, or ``ISIC_2020_Training_GroundTruth.csv`` or
    ``train.csv``, which do not, with the JPEG files in ``train`` or any other folder below.

    Returns:
        The records with the classes of ``ISIC2020_CLASSES``, all in split ``train``; images are paths below ``root``.

    Raises:
        DataError: if a file, column, image or value is missing or wrong; file and line are named.
    """
    root = Path(root)
    table = find_table(root, TABLES_2020, "ISIC 2020")
    images = images_by_name(root, ".jpg")

    def record(row: dict[str, str], where: str) -> Record:
        """The record of a row."""
        image = image_called(row["image_name"], images, where, root)
        lesion = row.get("lesion_id", "")
        return Record(image, _class_2020(row, where), patient=row["patient_id"], lesion=lesion, source=SOURCE_2020)

    return read_records(table, ("image_name", "patient_id"), record)


def _class_2020(row: dict[str, str], where: str) -> str:
    if "benign_malignant" in row:
        require_known_label(row["benign_malignant"], ISIC2020_CLASSES, f"{where}, column benign_malignant")
        return row["benign_malignant"]
    if "target" not in row:
        raise DataError(f"{where}: column 'benign_malignant' or 'target' is missing; restore the published table")
    if row["target"] not in TARGETS_2020:
        raise DataError(f"{where}, column target: expected 0 or 1, got {row['target']!r}")
    return TARGETS_2020[row["target"]]


@dataclass(frozen=True, kw_only=True)
class Isic2018Options(SkinOptions):
    """Options of ISIC 2018."""

    scheme: Annotated[str, MUTUAL_DIVISION] = "iid"


@dataclass(frozen=True, kw_only=True)
class Isic2020Options(PartitionOptions):
    """Options of ISIC 2020."""

    scheme: Annotated[str, DIVISION] = "external"


@gr.register_dataset("isic2018", options=Isic2018Options)
def isic2018(root: Path, options: Isic2018Options) -> ReadDataset:
    """ISIC 2018 task 3: ..._GroundTruth.csv, ..._LesionGroupings.csv and ..._Training_Input."""
    records = read_isic2018(root, with_lesions=options.group_by == "lesion")
    return without_lesions(ReadDataset(records, root, ISIC2018_CLASSES), options)


@gr.register_dataset("isic2020", options=Isic2020Options)
def isic2020(root: Path, options: Isic2020Options) -> ReadDataset:
    """ISIC 2020: ISIC_2020_Training_GroundTruth_v2.csv (or train.csv) and the folder train."""
    return ReadDataset(read_isic2020(root), root, ISIC2020_CLASSES)
