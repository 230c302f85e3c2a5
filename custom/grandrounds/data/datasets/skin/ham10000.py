"""HAM10000: 10,015 dermatoscopic images of pigmented skin lesions from four acquisition sites.

Source: P. Tschandl, C. Rosendahl, H. Kittler, "The HAM10000 dataset, a large collection of multi-source dermatoscopic
images of common pigmented skin lesions", Scientific Data 5:180161, 2018, doi:10.7910/DVN/DBW86T (CC BY-NC 4.0).
There is no patient key; several images may show one lesion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from grandrounds.data.datasets.published import (
    BENIGN,
    MALIGNANT,
    find_table,
    image_called,
    images_by_name,
    images_in_archive,
    require_distinct,
)
from grandrounds.data.manifest import Record, read_table, require_known_label

HAM10000_CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")

ARCHIVE_MANIFEST = "ham10000_manifest.csv"
ARCHIVE = "ham10000_200x150.zip"
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
        the archive. ``source`` is ``HAM10000/`` and the acquisition site.

    Raises:
        DataError: if no layout is found, a column is missing, a class is unknown, or images are missing or listed
            twice; the message names what was looked for and where.
    """
    root = Path(root)
    if (root / ARCHIVE_MANIFEST).is_file():
        return _read_archive_layout(root)
    table = find_table(root, (*PUBLISHED_METADATA, ARCHIVE_MANIFEST), "HAM10000")
    return _read_published_layout(root, table), root


def _read_archive_layout(root: Path) -> tuple[tuple[Record, ...], Path]:
    table, archive = root / ARCHIVE_MANIFEST, root / ARCHIVE
    rows = read_table(table, ("image", "label", "patient", "lesion", "source"))
    images = images_in_archive(archive, table)
    records = tuple(
        Record(
            image=image_called(row["image"], images, f"{table} line {line}", str(archive)),
            label=_label(row["label"], f"{table} line {line}, column label"),
            patient=row["patient"],
            lesion=row["lesion"],
            source=row["source"],
        )
        for line, row in rows
    )
    return require_distinct(records, table), archive


def _read_published_layout(root: Path, table: Path) -> tuple[Record, ...]:
    rows = read_table(table, PUBLISHED_COLUMNS)
    images = images_by_name(root, ".jpg")
    records = tuple(
        Record(
            image=image_called(row["image_id"], images, f"{table} line {line}", f"{root} and the folders in it"),
            label=_label(row["dx"], f"{table} line {line}, column dx"),
            lesion=row["lesion_id"],
            source=SOURCE_PREFIX + row["dataset"],
        )
        for line, row in rows
    )
    return require_distinct(records, table)


def _label(name: str, where: str) -> str:
    require_known_label(name, HAM10000_CLASSES, where)
    return name


def by_malignancy(records: Iterable[Record]) -> tuple[Record, ...]:
    """The records of HAM10000 with the classes of ``MALIGNANCY_CLASSES``.

    Example:
        >>> [record.label for record in by_malignancy([Record("a", "mel"), Record("b", "nv")])]
        ['malignant', 'benign']
    """
    return tuple(replace(record, label=HAM10000_MALIGNANCY[record.label]) for record in records)
