"""ISIC 2020 training data: 33,126 dermoscopic images of 2,056 patients, benign or malignant (584).

Source: V. Rotemberg et al., "A patient-centric dataset of images and metadata for identifying melanomas using clinical
context", Scientific Data 8:34, 2021, doi:10.34970/2020-ds01 (CC BY-NC 4.0).
"""

from __future__ import annotations

from pathlib import Path

from grandrounds.data.datasets.published import find_table, image_called, images_by_name, require_distinct
from grandrounds.data.manifest import Record, read_table, require_known_label
from grandrounds.errors import DataError

ISIC2020_CLASSES = ("benign", "malignant")
TABLES = ("ISIC_2020_Training_GroundTruth_v2.csv", "ISIC_2020_Training_GroundTruth.csv", "train.csv")
SOURCE = "ISIC2020"
TARGETS = {"0": "benign", "1": "malignant"}


def read_isic2020(root: Path | str) -> tuple[Record, ...]:
    """Read the records of the ISIC 2020 training data in one of its published layouts.

    That is ``ISIC_2020_Training_GroundTruth_v2.csv``, which knows lesions, or ``ISIC_2020_Training_GroundTruth.csv`` or
    ``train.csv``, which do not, with the JPEG files in ``train`` or any other folder below.

    Args:
        root: the folder.

    Returns:
        The records with the classes of ``ISIC2020_CLASSES``, all in split ``train``; images are paths below ``root``.

    Raises:
        DataError: if the table, a column or an image is missing, an image is listed twice, or a class is unknown; file,
            line and column are named.
    """
    root = Path(root)
    table = find_table(root, TABLES, "ISIC 2020")
    images = images_by_name(root, ".jpg")
    places = f"{root} and the folders in it"
    records = tuple(
        Record(
            image=image_called(row["image_name"], images, f"{table} line {line}", places),
            label=_label(row, f"{table} line {line}"),
            patient=row["patient_id"],
            lesion=row.get("lesion_id", ""),
            source=SOURCE,
        )
        for line, row in read_table(table, ("image_name", "patient_id"))
    )
    return require_distinct(records, table)


def _label(row: dict[str, str], where: str) -> str:
    if "benign_malignant" in row:
        require_known_label(row["benign_malignant"], ISIC2020_CLASSES, f"{where}, column benign_malignant")
        return row["benign_malignant"]
    if "target" not in row:
        raise DataError(f"{where}: column 'benign_malignant' or 'target' is missing; restore the published table")
    if row["target"] not in TARGETS:
        raise DataError(f"{where}, column target: expected 0 or 1, got {row['target']!r}")
    return TARGETS[row["target"]]
