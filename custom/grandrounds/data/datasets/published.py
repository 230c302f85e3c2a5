"""The published data sets of the package, and the pieces of their readers: tables, folders of images, classes, labels.

Images are found wherever below a data set's folder its archives were unpacked.
"""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final

from grandrounds.checks import require_known_label, reraised_as
from grandrounds.data.images.files.reading import AS_IN_FILES, Reading
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record, further_columns, read_table
from grandrounds.errors import DataError
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE

Progress = Callable[[int, int], None]
"""Called with the number of headers read and of all headers."""

BENIGN: Final = "benign"
MALIGNANT: Final = "malignant"
MALIGNANCY_CLASSES = (BENIGN, MALIGNANT)


@dataclass(frozen=True)
class ReadDataset:
    """A data set as it was read.

    ``images`` is their folder or archive, ``facts`` are further entries of the partition's description, ``reading`` is how
    the sites read the image files. ``sites`` is the site of each record, where the data set names them; ``splits`` is
    whether the splits of the records are to be kept, ``task`` what their labels are.
    """

    records: tuple[Record, ...]
    images: Path
    classes: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    reading: Reading = AS_IN_FILES
    name: str = ""
    sites: tuple[str, ...] = ()
    splits: bool = False
    task: Task = SINGLE


def find_table(root: Path, names: Sequence[str], dataset: str) -> Path:
    """The first of these files, by paths below ``root``, that is there.

    Raises:
        DataError: if none is; the message lists these files, or asks to save a spreadsheet as CSV.
    """
    for name in names:
        if (root / name).is_file():
            return root / name
    for sheet in ((root / name).with_suffix(suffix) for name in names for suffix in (".xls", ".xlsx")):
        if sheet.is_file():
            raise DataError(f"{sheet} is a spreadsheet; save it as {sheet.with_suffix('.csv').name} beside it")
    raise DataError(f"no {dataset} in {root}: looked for {', '.join(names)}; name the data set's own folder")


def images_by_name(root: Path, suffix: str) -> dict[str, str]:
    """Path below ``root`` of every file with this ending (in any case), by its name without it.

    Of files of one name the one nearest to ``root`` counts, and among those the first in alphabetical order: archives
    are often unpacked twice.
    """
    images: dict[str, str] = {}
    for path in sorted(files_called(root, suffix), key=lambda path: (len(path.parts), path.as_posix())):
        images.setdefault(path.stem, path.as_posix())
    return images


def images_in_archive(archive: Path, table: Path) -> dict[str, str]:
    """Path of every entry of a zip file, by itself.

    Raises:
        DataError: naming the archive, and the table beside it that names its entries, if it cannot be read.
    """
    where = f"{archive}, which {table.name} belongs to, cannot be read"
    with reraised_as(DataError, OSError, zipfile.BadZipFile, where=where), zipfile.ZipFile(archive) as opened:
        return {name: name for name in opened.namelist()}


def image_called(name: str, images: Mapping[str, str], where: str, root: Path) -> str:
    """The path of an image that a table names.

    Raises:
        DataError: if it is missing; ``where`` is file and line, ``root`` the folder or archive of ``images``.
    """
    if name not in images:
        raise DataError(f"{where}: image {name!r} was looked for in {root} and not found; complete the data set")
    return images[name]


def read_records(
    table: Path, columns: Sequence[str], record_of: Callable[[dict[str, str], str], Record | None]
) -> tuple[Record, ...]:
    """One record for each row of a table, from the row and its file and line; none where ``record_of`` returns None.

    Raises:
        DataError: if the table is damaged, or an image occurs twice.
    """
    rows = ((row, f"{table} line {line}") for line, row in read_table(table, columns))
    records: dict[str, Record] = {}
    for record in (record_of(row, where) for row, where in rows):
        if record is not None and records.setdefault(record.image, record) is not record:
            raise DataError(f"{table}: image {record.image!r} is listed twice; remove one row")
    return tuple(records.values())


def files_called(root: Path, suffix: str) -> Iterator[Path]:
    """Every file below ``root`` with this ending, in any case, by its path from there; links to folders are followed."""
    for folder, _, files in os.walk(root, followlinks=True):
        yield from (Path(folder, file).relative_to(root) for file in files if file.lower().endswith(suffix))


def read_class_folders(
    root: Path, classes: Mapping[str, str | None], dataset: str
) -> tuple[tuple[Record, ...], dict[str, int]]:
    """Read the records of a folder with one folder of images for each class, at any depth; hidden files are skipped.

    Returns:
        The records by name (all in split ``train``), and the number of images left out of each folder whose class is None.

    Raises:
        DataError: if a folder is missing or empty, or there are images in another folder.
    """
    with open_images(root) as reader:
        names = reader.names()
    folders = Counter(PurePosixPath(name).parent.name for name in names)
    for folder in classes:
        if not folders[folder]:
            raise DataError(
                f"no whole {dataset} in {root}: folder {folder} is missing or empty; name the unpacked folder"
            )
    for name in names:
        if PurePosixPath(name).parent.name not in classes:
            raise DataError(
                f"{root}: image {name!r} is in a folder that is not a class of {dataset}; expected {', '.join(classes)}"
            )
    labels = [(name, classes[PurePosixPath(name).parent.name]) for name in names]
    records = tuple(Record(name, label, source=dataset) for name, label in labels if label is not None)
    return records, {folder: folders[folder] for folder, label in classes.items() if label is None}


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


PBC_CLASSES = (
    "basophil", "eosinophil", "erythroblast", "ig", "lymphocyte", "monocyte", "neutrophil", "platelet",
)  # fmt: skip
"""``ig`` are the immature granulocytes. The order is also BloodMNIST's."""

PBC_MANIFEST = "pbc_barcelona_manifest.csv"
PBC_ARCHIVE = "pbc_barcelona_96.zip"


def read_pbc(root: Path | str) -> tuple[tuple[Record, ...], Path]:
    """Read the records of PBC Barcelona from one of the layouts in which it is found.

    * the published one: ``PBC_dataset_normal_DIB`` with a folder of JPEG files for each class, or any folder above it;
    * a small one: ``pbc_barcelona_manifest.csv`` beside ``pbc_barcelona_96.zip``.

    Returns:
        The records (all in split ``train``) and the images' root: the folder, or the archive.

    Raises:
        DataError: if no layout is found, a class is missing or unknown, or images are missing or listed twice.
    """
    root = Path(root)
    if (root / PBC_MANIFEST).is_file():
        return _read_small_pbc(root)
    records, _ = read_class_folders(root, {name: name for name in PBC_CLASSES}, "PBC-Barcelona")
    return records, root


def _read_small_pbc(root: Path) -> tuple[tuple[Record, ...], Path]:
    table, archive = root / PBC_MANIFEST, root / PBC_ARCHIVE
    images = images_in_archive(archive, table)

    def record(row: dict[str, str], where: str) -> Record:
        """The record of a row."""
        require_known_label(row["label"], PBC_CLASSES, f"{where}, column label")
        return Record(image_called(row["image"], images, where, archive), row["label"], source=row["source"])

    return read_records(table, ("image", "label", "source"), record), archive
