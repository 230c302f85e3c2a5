"""ISIC 2019 training data: 25,331 dermoscopic images of eight classes, gathered from BCN20000, HAM10000 and MSK.

Source: ISIC 2019 challenge, https://challenge.isic-archive.com/data/#2019 (CC BY-NC 4.0); M. Combalia et al.,
"BCN20000: Dermoscopic lesions in the wild", arXiv:1908.02288; Tschandl et al., Scientific Data 5:180161, 2018; N. Codella
et al., ISBI 2018. It contains all images of HAM10000 under the same names. There is no patient key; about 2,000 images
have no lesion either.
"""

from __future__ import annotations

from pathlib import Path

from grandrounds.data.datasets.published import find_table, image_called, images_by_name, require_distinct
from grandrounds.data.datasets.skin.classes import ISIC2019_LABELS, LEFT_OUT
from grandrounds.data.manifest import Record, read_table
from grandrounds.errors import DataError

GROUND_TRUTH = "ISIC_2019_Training_GroundTruth.csv"
METADATA = "ISIC_2019_Training_Metadata.csv"
SOURCE = "ISIC2019"
ON = {"1", "1.0"}
OFF = {"0", "0.0"}


def read_isic2019(root: Path | str) -> tuple[Record, ...]:
    """Read the records of the ISIC 2019 training data in its published layout.

    That is ``ISIC_2019_Training_GroundTruth.csv`` and ``ISIC_2019_Training_Metadata.csv`` with the JPEG files in
    ``ISIC_2019_Training_Input`` or any other folder below.

    Args:
        root: the folder.

    Returns:
        The records with the classes of ``LESION_CLASSES``, all in split ``train``; images are paths below ``root``.
        Images of class ``UNK`` are left out.

    Raises:
        DataError: if a table, a column, a row or an image is missing, or a row has not exactly one class; file, line
            and column are named.
    """
    root = Path(root)
    table = find_table(root, (GROUND_TRUTH,), "ISIC 2019")
    lesions = _lesions(root)
    images = images_by_name(root, ".jpg")
    places = f"{root} and the folders in it"
    records = []
    for line, row in read_table(table, ("image", *ISIC2019_LABELS)):
        where = f"{table} line {line}"
        label = _label(row, where)
        if row["image"] not in lesions:
            raise DataError(f"{where}, column image: {row['image']!r} has no row in {METADATA}; complete the table")
        if label != LEFT_OUT:
            image = image_called(row["image"], images, where, places)
            records.append(Record(image, label, lesion=lesions[row["image"]], source=SOURCE))
    return require_distinct(tuple(records), table)


def _lesions(root: Path) -> dict[str, str]:
    table = find_table(root, (METADATA,), "ISIC 2019")
    return {row["image"]: row["lesion_id"] for _, row in read_table(table, ("image", "lesion_id"))}


def _label(row: dict[str, str], where: str) -> str:
    for name in ISIC2019_LABELS:
        if row[name] not in ON | OFF:
            raise DataError(f"{where}, column {name}: expected 0 or 1, got {row[name]!r}")
    marked = [name for name in ISIC2019_LABELS if row[name] in ON]
    if len(marked) != 1:
        raise DataError(f"{where}: expected 1 in one of the columns {', '.join(ISIC2019_LABELS)}, got {len(marked)}")
    return ISIC2019_LABELS[marked[0]]
