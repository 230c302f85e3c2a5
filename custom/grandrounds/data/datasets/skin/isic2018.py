"""ISIC 2018 task 3: 10,015 dermoscopic images of seven classes, the images of HAM10000 under the same names.

Source: N. Codella et al., "Skin lesion analysis toward melanoma detection 2018: a challenge hosted by the International
Skin Imaging Collaboration (ISIC)", arXiv:1902.03368; Tschandl et al., Scientific Data 5:180161, 2018 (CC BY-NC 4.0).
There is no patient key; about 7,470 lesions are shown, some of them several times.
"""

from __future__ import annotations

from pathlib import Path

from grandrounds.data.datasets.published import find_table, image_called, images_by_name, require_distinct
from grandrounds.data.manifest import Record, read_table
from grandrounds.errors import DataError

ISIC2018_CLASSES = ("mel", "nv", "bcc", "akiec", "bkl", "df", "vasc")
COLUMNS = tuple(name.upper() for name in ISIC2018_CLASSES)
GROUND_TRUTH = "ISIC2018_Task3_Training_GroundTruth.csv"
GROUPINGS = "ISIC2018_Task3_Training_LesionGroupings.csv"
SOURCE = "ISIC2018"
FLAGS = {"1": True, "1.0": True, "0": False, "0.0": False}


def read_isic2018(root: Path | str, with_lesions: bool = True) -> tuple[Record, ...]:
    """Read the records of the ISIC 2018 task 3 training data in its published layout.

    That is ``ISIC2018_Task3_Training_GroundTruth.csv``, in ``root`` or in a folder of its name, and the JPEG files in
    ``ISIC2018_Task3_Training_Input`` or any other folder below. ``ISIC2018_Task3_Training_LesionGroupings.csv`` says which
    images show one lesion; without it they can only be taken one by one.

    Args:
        root: the folder.
        with_lesions: whether the records name their lesion; the table of lesions must be there then.

    Returns:
        The records with the classes of ``ISIC2018_CLASSES``, all in split ``train``; images are paths below ``root``.

    Raises:
        DataError: if a table, a column, a row or an image is missing, an image is listed twice, or a row has not exactly
            one class; file, line and column are named.
    """
    root = Path(root)
    table = _table(root, GROUND_TRUTH)
    lesions = _lesions(root) if with_lesions else {}
    images = images_by_name(root, ".jpg")
    places = f"{root} and the folders in it"
    records = []
    for line, row in read_table(table, ("image", *COLUMNS)):
        where = f"{table} line {line}"
        if with_lesions and not lesions.get(row["image"]):
            raise DataError(f"{where}, column image: {row['image']!r} has no lesion in {GROUPINGS}; complete the table")
        image = image_called(row["image"], images, where, places)
        records.append(Record(image, _label(row, where), lesion=lesions.get(row["image"], ""), source=SOURCE))
    return require_distinct(tuple(records), table)


def _table(root: Path, name: str) -> Path:
    return find_table(root, (name, f"{Path(name).stem}/{name}"), "ISIC 2018 task 3")


def _lesions(root: Path) -> dict[str, str]:
    try:
        table = _table(root, GROUPINGS)
    except DataError as error:
        raise DataError(
            f"{error}; without this table images can only be divided one by one (group_by image), so that one lesion may "
            "be in training and test"
        ) from error
    return {row["image"]: row["lesion_id"] for _, row in read_table(table, ("image", "lesion_id"))}


def _label(row: dict[str, str], where: str) -> str:
    for name in COLUMNS:
        if row[name] not in FLAGS:
            raise DataError(f"{where}, column {name}: expected 0 or 1, got {row[name]!r}")
    marked = [label for label, name in zip(ISIC2018_CLASSES, COLUMNS, strict=True) if FLAGS[row[name]]]
    if len(marked) != 1:
        raise DataError(f"{where}: expected 1 in one of the columns {', '.join(COLUMNS)}, got {len(marked)}")
    return marked[0]
