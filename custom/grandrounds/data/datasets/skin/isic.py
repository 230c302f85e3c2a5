"""Dermoscopic images of the ISIC challenges 2018 (task 3) and 2020.

ISIC 2018 task 3: 10,015 images of seven classes, the images of HAM10000 under the same names. N. Codella et al., "Skin
lesion analysis toward melanoma detection 2018: a challenge hosted by the International Skin Imaging Collaboration (ISIC)",
arXiv:1902.03368; Tschandl et al., Scientific Data 5:180161, 2018 (CC BY-NC 4.0). There is no patient key; about 7,470
lesions are shown, some of them several times.

ISIC 2020: 33,126 images of 2,056 patients, benign or malignant (584). V. Rotemberg et al., "A patient-centric dataset of
images and metadata for identifying melanomas using clinical context", Scientific Data 8:34, 2021, doi:10.34970/2020-ds01
(CC BY-NC 4.0).
"""

from __future__ import annotations

from pathlib import Path

from grandrounds.data.datasets.published import (
    MALIGNANCY_CLASSES,
    find_table,
    image_called,
    images_by_name,
    require_distinct,
)
from grandrounds.data.manifest import Record, read_table, require_known_label
from grandrounds.errors import DataError

ISIC2018_CLASSES = ("mel", "nv", "bcc", "akiec", "bkl", "df", "vasc")
COLUMNS_2018 = tuple(name.upper() for name in ISIC2018_CLASSES)
GROUND_TRUTH = "ISIC2018_Task3_Training_GroundTruth.csv"
GROUPINGS = "ISIC2018_Task3_Training_LesionGroupings.csv"
SOURCE_2018 = "ISIC2018"
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
        DataError: if a file, column, image or value is missing or wrong; file and line are named.
    """
    root = Path(root)
    table = _table_2018(root, GROUND_TRUTH)
    lesions = _lesions_2018(root) if with_lesions else {}
    images = images_by_name(root, ".jpg")
    places = f"{root} and the folders in it"
    records = []
    for line, row in read_table(table, ("image", *COLUMNS_2018)):
        where = f"{table} line {line}"
        if with_lesions and not lesions.get(row["image"]):
            raise DataError(f"{where}, column image: {row['image']!r} has no lesion in {GROUPINGS}; complete the table")
        image = image_called(row["image"], images, where, places)
        records.append(Record(image, _class_2018(row, where), lesion=lesions.get(row["image"], ""), source=SOURCE_2018))
    return require_distinct(tuple(records), table)


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


def _class_2018(row: dict[str, str], where: str) -> str:
    for name in COLUMNS_2018:
        if row[name] not in FLAGS:
            raise DataError(f"{where}, column {name}: expected 0 or 1, got {row[name]!r}")
    marked = [label for label, name in zip(ISIC2018_CLASSES, COLUMNS_2018, strict=True) if FLAGS[row[name]]]
    if len(marked) != 1:
        raise DataError(f"{where}: expected 1 in one of the columns {', '.join(COLUMNS_2018)}, got {len(marked)}")
    return marked[0]


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
    places = f"{root} and the folders in it"
    records = tuple(
        Record(
            image=image_called(row["image_name"], images, f"{table} line {line}", places),
            label=_class_2020(row, f"{table} line {line}"),
            patient=row["patient_id"],
            lesion=row.get("lesion_id", ""),
            source=SOURCE_2020,
        )
        for line, row in read_table(table, ("image_name", "patient_id"))
    )
    return require_distinct(records, table)


def _class_2020(row: dict[str, str], where: str) -> str:
    if "benign_malignant" in row:
        require_known_label(row["benign_malignant"], ISIC2020_CLASSES, f"{where}, column benign_malignant")
        return row["benign_malignant"]
    if "target" not in row:
        raise DataError(f"{where}: column 'benign_malignant' or 'target' is missing; restore the published table")
    if row["target"] not in TARGETS_2020:
        raise DataError(f"{where}, column target: expected 0 or 1, got {row['target']!r}")
    return TARGETS_2020[row["target"]]
