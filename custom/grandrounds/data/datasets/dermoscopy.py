"""HAM10000: 10,015 dermoscopic images of pigmented skin lesions from four acquisition sites.

Source: P. Tschandl, C. Rosendahl, H. Kittler, "The HAM10000 dataset, a large collection of multi-source dermatoscopic images
of common pigmented skin lesions", Scientific Data 5:180161, 2018, doi:10.7910/DVN/DBW86T (CC BY-NC 4.0). There is no patient
key; several images may show one lesion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from grandrounds.checks import require_known_label
from grandrounds.data.datasets.published import (
    BENIGN,
    MALIGNANT,
    find_table,
    image_called,
    images_by_name,
    images_in_archive,
    read_records,
)
from grandrounds.data.manifest import Record, further_columns

HAM10000_CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")

HAM10000_MANIFEST = "ham10000_manifest.csv"
HAM10000_ARCHIVE = "ham10000_200x150.zip"
ARCHIVE_COLUMNS = ("image", "label", "patient", "lesion", "source")
PUBLISHED_METADATA = ("HAM10000_metadata.csv", "HAM10000_metadata")
PUBLISHED_COLUMNS = ("lesion_id", "image_id", "dx", "dataset")
SOURCE_PREFIX = "HAM10000/"

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
