"""Pieces of the readers: images by folder, columns of 1 and 0, labels without a class, and patients of DICOM files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from grandrounds.checks import require_known_label
from grandrounds.data.datasets.published import files_called
from grandrounds.data.image_files import Folder
from grandrounds.data.images.dicom import read_header
from grandrounds.errors import DataError

NO_DIAGNOSIS = ""
"""The label of images that belong to no class of the vocabulary and are not used."""
NORMAL: Final = "normal"
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
