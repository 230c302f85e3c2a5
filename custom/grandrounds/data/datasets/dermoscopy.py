"""Dermoscopic images of HAM10000 and of the ISIC challenges 2018 (task 3) and 2020.

HAM10000: 10,015 images of pigmented skin lesions from four acquisition sites. P. Tschandl, C. Rosendahl, H. Kittler, "The
HAM10000 dataset, a large collection of multi-source dermatoscopic images of common pigmented skin lesions", Scientific
Data 5:180161, 2018, doi:10.7910/DVN/DBW86T (CC BY-NC 4.0). There is no patient key; several images may show one lesion.

ISIC 2018 task 3: the images of HAM10000 under the same names. N. Codella et al., "Skin lesion analysis toward melanoma
detection 2018: a challenge hosted by the International Skin Imaging Collaboration (ISIC)", arXiv:1902.03368 (CC BY-NC 4.0).
About 7,470 lesions are shown, some of them several times.

ISIC 2020: 33,126 images of 2,056 patients, benign or malignant (584). V. Rotemberg et al., "A patient-centric dataset of
images and metadata for identifying melanomas using clinical context", Scientific Data 8:34, 2021, doi:10.34970/2020-ds01
(CC BY-NC 4.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from grandrounds.checks import require_known_label
from grandrounds.data.datasets.published import (
    BENIGN,
    MALIGNANCY_CLASSES,
    MALIGNANT,
    find_table,
    image_called,
    images_by_name,
    images_in_archive,
    read_records,
)
from grandrounds.data.datasets.published_labels import marked_column
from grandrounds.data.manifest import Record, further_columns, read_table
from grandrounds.errors import DataError

HAM10000_CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")

HAM10000_MANIFEST = "ham10000_manifest.csv"
HAM10000_ARCHIVE = "ham10000_200x150.zip"
ARCHIVE_COLUMNS = ("image", "label", "patient", "lesion", "source")
PUBLISHED_METADATA = ("HAM10000_metadata.csv", "HAM10000_metadata")
PUBLISHED_COLUMNS = ("lesion_id", "image_id", "dx", "dataset")
SOURCE_PREFIX = "HAM10000/"

# HAM10000 calls actinic keratoses and Bowen's disease akiec; it has no invasive squamous cell carcinoma.
HAM10000_LESION_LABELS: Mapping[str, str] = {
    "akiec": "ak", "bcc": "bcc", "bkl": "bkl", "df": "df", "mel": "mel", "nv": "nv", "vasc": "vasc",
}  # fmt: skip

# Actinic keratoses and Bowen's disease (akiec) count as malignant: they are carcinomas in situ or their forerunners.
HAM10000_MALIGNANCY: Mapping[str, str] = MappingProxyType({
    "akiec": MALIGNANT, "bcc": MALIGNANT, "bkl": BENIGN, "df": BENIGN, "mel": MALIGNANT, "nv": BENIGN,
    "vasc": BENIGN,
})  # fmt: skip


def read_ham10000(root: Path | str) -> tuple[tuple[Record, ...], Path]:
    """Read the records of HAM10000 from one of the layouts in which it is found.

    * the published one: ``HAM10000_metadata.csv`` (or without ``.csv``) and the JPEG files, in the same folder or in
      folders beside it (``HAM10000_images_part_1``, ``HAM10000_images_part_2``, or any one folder);
    * a small one: ``ham10000_manifest.csv`` beside ``ham10000_200x150.zip``.

    Returns:
        The records (all in split ``train``: divide them with ``assign_splits``) and the images' root: the folder, or
        the archive. ``source`` is ``HAM10000/`` and the acquisition site; age, sex and body site are further columns.

    Raises:
        DataError: if no layout is found, a column is missing, a class is unknown, or images are missing or listed
            twice; the message names what was looked for and where.
    """
    root = Path(root)
    if (root / HAM10000_MANIFEST).is_file():
        return _read_archive_layout(root)
    table = find_table(root, (*PUBLISHED_METADATA, HAM10000_MANIFEST), "HAM10000")
    images = images_by_name(root, ".jpg")

    def record(row: dict[str, str], where: str) -> Record:
        """The record of a row."""
        require_known_label(row["dx"], HAM10000_CLASSES, f"{where}, column dx")
        image = image_called(row["image_id"], images, where, root)
        source = SOURCE_PREFIX + row["dataset"]
        more = further_columns(row, PUBLISHED_COLUMNS)
        return Record(image, row["dx"], lesion=row["lesion_id"], source=source, more=more)

    return read_records(table, PUBLISHED_COLUMNS, record), root


def _read_archive_layout(root: Path) -> tuple[tuple[Record, ...], Path]:
    table, archive = root / HAM10000_MANIFEST, root / HAM10000_ARCHIVE
    images = images_in_archive(archive, table)

    def record(row: dict[str, str], where: str) -> Record:
        """The record of a row."""
        require_known_label(row["label"], HAM10000_CLASSES, f"{where}, column label")
        image = image_called(row["image"], images, where, archive)
        more = further_columns(row, ARCHIVE_COLUMNS)
        return Record(image, row["label"], "train", row["patient"], row["lesion"], row["source"], more=more)

    return read_records(table, ARCHIVE_COLUMNS, record), archive


def by_malignancy(records: Iterable[Record]) -> tuple[Record, ...]:
    """The records of HAM10000 with the classes of ``MALIGNANCY_CLASSES``.

    Example:
        >>> [record.label for record in by_malignancy([Record("a", "mel"), Record("b", "nv")])]
        ['malignant', 'benign']
    """
    return tuple(replace(record, label=HAM10000_MALIGNANCY[record.label]) for record in records)


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
