"""Pieces of the readers of published data sets: tables, folders of images, folders as classes, and labels.

Images are found wherever below a data set's folder its archives were unpacked.
"""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

from grandrounds.checks import told_as
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record, read_table
from grandrounds.errors import DataError

BENIGN: Final = "benign"
MALIGNANT: Final = "malignant"
NORMAL: Final = "normal"
MALIGNANCY_CLASSES = (BENIGN, MALIGNANT)
NO_DIAGNOSIS = ""
"""The label of images that belong to no class of the vocabulary and are not used."""

TRAIN_AND_TEST: Mapping[str, str] = MappingProxyType({"train": "train_labels", "test": "test_labels"})
TRUE_AND_FALSE = {"1": True, "1.0": True, "0": False, "0.0": False}


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
    found: dict[str, str] = {}
    for path in sorted(_files(root, suffix), key=lambda path: (len(path.parts), path.as_posix())):
        found.setdefault(path.stem, path.as_posix())
    return found


def images_by_folder(root: Path, folders: Collection[str], suffix: str) -> dict[str, list[str]]:
    """Paths below ``root`` of the files with this ending (in any case) in each of these folders, wherever it is.

    Returns:
        Sorted paths by folder, and these in the order of their names.
    """
    found: dict[str, list[str]] = {folder: [] for folder in sorted(folders)}
    for path in _files(root, suffix):
        own = next((part for part in path.parts[:-1] if part in found), None)
        if own is not None:
            found[own].append(path.as_posix())
    return {folder: sorted(paths) for folder, paths in found.items()}


def images_in_archive(archive: Path, table: Path) -> dict[str, str]:
    """Path of every entry of a zip file, by itself.

    Raises:
        DataError: naming the archive, and the table beside it that names its entries, if it cannot be read.
    """
    where = f"{archive}, which {table.name} belongs to, cannot be read"
    with told_as(DataError, OSError, zipfile.BadZipFile, where=where), zipfile.ZipFile(archive) as opened:
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
    found: dict[str, Record] = {}
    for record in (record_of(row, where) for row, where in rows):
        if record is not None and found.setdefault(record.image, record) is not record:
            raise DataError(f"{table}: image {record.image!r} is listed twice; remove one row")
    return tuple(found.values())


def _files(root: Path, suffix: str) -> Iterator[Path]:
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
