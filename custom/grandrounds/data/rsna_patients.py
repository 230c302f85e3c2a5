"""Whose a slice is: the identifier is in the DICOM headers, and reading them takes long enough to write it down.

The table has the columns ``image`` (without ``.dcm``) and ``patient``. It may come from elsewhere; what it lacks is read
from the headers and added to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from grandrounds.data.csv_table import read_table
from grandrounds.data.dicom import read_patient
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.files import write_csv

COLUMNS = ("image", "patient")
SUFFIX = ".dcm"
STEP = 100
"""How many headers are read between two reports of progress."""

Progress = Callable[[int, int], None]
"""Told how many headers have been read, and of how many."""


def find_patients(files: Mapping[str, Path], table: Path, progress: Progress | None = None) -> dict[str, str]:
    """The patient of every image, from the table or else from the images' headers.

    What was read from headers is written to the table, also after an interruption, so that it is read once.

    Args:
        files: the DICOM file of each image.
        table: where the patients are written down; made when it is missing.
        progress: told how far the reading of headers is.

    Returns:
        Patients by image, for the images asked for.

    Raises:
        DataError: if the table is damaged or contradicts itself, or a header cannot be read or names no patient.
        ConfigurationError: if headers must be read and the table cannot be written.
    """
    known = _read(table) if table.is_file() else {}
    missing = [image for image in files if image not in known]
    if missing:
        _require_writable(table)
        known |= _from_headers(files, missing, known, table, progress)
    return {image: known[image] for image in files}


def _from_headers(
    files: Mapping[str, Path], missing: Sequence[str], known: Mapping[str, str], table: Path, progress: Progress | None
) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        for done, image in enumerate(missing):
            if progress and done % STEP == 0:
                progress(done, len(missing))
            found[image] = read_patient(files[image])
    finally:
        if found:
            write_csv(table, COLUMNS, sorted({**known, **found}.items()))
    if progress:
        progress(len(missing), len(missing))
    return found


def _read(table: Path) -> dict[str, str]:
    patients: dict[str, str] = {}
    for line, row in read_table(table, COLUMNS):
        image = row["image"].removesuffix(SUFFIX)
        for column in COLUMNS:
            if not row[column]:
                raise DataError(f"{table} line {line}, column {column}: it is empty; fill it in or remove the row")
        if patients.setdefault(image, row["patient"]) != row["patient"]:
            raise DataError(
                f"{table} line {line}: image {image!r} has two patients, {patients[image]} and {row['patient']}; "
                "remove the wrong row"
            )
    return patients


def _require_writable(table: Path) -> None:
    if not table.parent.is_dir() or not os.access(table.parent, os.W_OK):
        raise ConfigurationError(
            f"{table} cannot be written, and the patients of some images must be read from their headers and kept "
            "there; name another file (patients)"
        )
