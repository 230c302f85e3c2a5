"""Pieces of the readers of published data sets: tables, folders of images, folders as classes, and labels.

Images are found wherever below a data set's folder its archives were unpacked.
"""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_known_label, reraised_as
from grandrounds.data.images.files.reading import AS_IN_FILES, Reading
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record, read_table
from grandrounds.errors import DataError
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE

Progress = Callable[[int, int], None]
"""Called with the number of headers read and of all headers."""

BENIGN: Final = "benign"
MALIGNANT: Final = "malignant"
NORMAL: Final = "normal"
MALIGNANCY_CLASSES = (BENIGN, MALIGNANT)
NO_DIAGNOSIS = ""
"""The label of images that belong to no class of the vocabulary and are not used."""

TRAIN_AND_TEST: Mapping[str, str] = MappingProxyType({"train": "train_labels", "test": "test_labels"})
TRUE_AND_FALSE = {"1": True, "1.0": True, "0": False, "0.0": False}


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
    for path in sorted(_files(root, suffix), key=lambda path: (len(path.parts), path.as_posix())):
        images.setdefault(path.stem, path.as_posix())
    return images


def images_by_folder(root: Path, folders: Collection[str], suffix: str) -> dict[str, list[str]]:
    """Paths below ``root`` of the files with this ending (in any case) in each of these folders, wherever it is.

    Returns:
        Sorted paths by folder, and these in the order of their names.
    """
    images: dict[str, list[str]] = {folder: [] for folder in sorted(folders)}
    for path in _files(root, suffix):
        own = next((part for part in path.parts[:-1] if part in images), None)
        if own is not None:
            images[own].append(path.as_posix())
    return {folder: sorted(paths) for folder, paths in images.items()}


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


def marked_column(row: Mapping[str, str], columns: Sequence[str], where: str) -> str:
    """The one of these columns that holds 1.

    Raises:
        DataError: if the others do not hold 0, or there are several or none.
    """
    for name in columns:
        if row[name] not in TRUE_AND_FALSE:
            raise DataError(f"{where}, column {name}: expected 0 or 1, got {row[name]!r}")
    marked = [name for name in columns if TRUE_AND_FALSE[row[name]]]
    if len(marked) != 1:
        raise DataError(f"{where}: expected 1 in one of the columns {', '.join(columns)}, got {len(marked)}")
    return marked[0]


def mapped_label(name: str, labels: Mapping[str, str], where: str) -> str:
    """The class of a published label; empty if it has no class.

    Raises:
        DataError: if the label is unknown.

    Example:
        >>> mapped_label("ACK", {"ACK": "ak", "UNK": ""}, "metadata.csv line 2")
        'ak'
    """
    require_known_label(name, tuple(labels), where)
    return labels[name]


def read_labels(
    path: Path, classes: Sequence[str], source: str, arrays: Mapping[str, str] = TRAIN_AND_TEST
) -> tuple[Record, ...]:
    """The records of an npz file: one per image, array by array, all in split ``train``.

    A label is an index into ``classes``; ``arrays`` names the labels, of shape ``(n,)`` or ``(n, 1)``, by their images.

    Raises:
        DataError: if an array is missing, a label is not a class, or images and labels differ in number.
    """
    with open_images(path) as reader:
        names = set(reader.names())
    records: list[Record] = []
    try:
        with np.load(path, allow_pickle=False) as content:
            for images, name in arrays.items():
                stored = content[name]
                column = stored[:, 0] if stored.ndim == 2 and stored.shape[1] == 1 else stored
                labels = require_labels(column, len(classes), f"{path}: {name}")
                records += (
                    Record(f"{images}/{row}", classes[label], source=source) for row, label in enumerate(labels)
                )
    except KeyError as error:
        raise DataError(f"{path}: {error.args[0]}; expected {', '.join(arrays.values())}") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if names != {record.image for record in records}:
        raise DataError(f"{path} has {len(names)} images and {len(records)} labels; every image needs one label")
    return tuple(records)


def require_labels(column: NDArray[np.generic], classes: int, where: str) -> list[int]:
    """The labels as plain integers.

    Raises:
        DataError: if they are not one-dimensional arrays of integers from 0 to ``classes - 1``.
    """
    if column.ndim != 1 or not np.issubdtype(column.dtype, np.integer):
        raise DataError(f"{where} must be a row of integers, got {column.dtype} of shape {column.shape}")
    values: list[int] = column.tolist()
    if values and not 0 <= min(values) <= max(values) < classes:
        raise DataError(f"{where}: labels must be from 0 to {classes - 1}, got {min(values)} to {max(values)}")
    return values
