"""Pieces of the readers: images by folder, labels of npz files and of columns of 1 and 0, patients of DICOM files."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_known_label
from grandrounds.data.datasets.published import files_called
from grandrounds.data.image_files import Folder
from grandrounds.data.images.dicom import read_header
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

NO_DIAGNOSIS = ""
"""The label of images that belong to no class of the vocabulary and are not used."""
NORMAL: Final = "normal"
TRAIN_AND_TEST: Mapping[str, str] = MappingProxyType({"train": "train_labels", "test": "test_labels"})
TRUE_AND_FALSE = {"1": True, "1.0": True, "0": False, "0.0": False}


def images_by_folder(root: Path, folders: Collection[str], suffix: str) -> dict[str, list[str]]:
    """Paths below ``root`` of the files with this ending (in any case) in each of these folders, wherever it is.

    Returns:
        Sorted paths by folder, and these in the order of their names.
    """
    images: dict[str, list[str]] = {folder: [] for folder in sorted(folders)}
    for path in files_called(root, suffix):
        own = next((part for part in path.parts[:-1] if part in images), None)
        if own is not None:
            images[own].append(path.as_posix())
    return {folder: sorted(paths) for folder, paths in images.items()}


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


def read_patient(path: Path) -> str:
    """The patient's identifier in a file's header; the pixels are not read.

    Raises:
        DataError: if the file cannot be read, is not a DICOM file or does not name its patient.
    """
    patient = read_header(Folder(path.parent).open, path.name, ("PatientID",))["PatientID"]
    if not patient:
        raise DataError(f"{path}: its DICOM header names no patient (PatientID)")
    return patient


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
