"""INbreast: 410 digital mammograms of 115 cases, with BI-RADS assessments.

Source: I. Moreira et al., "INbreast: toward a full-field digital mammographic database", Academic Radiology 19(2), 2012
(research use, on request). All images are from one device, a Siemens MammoNovation. There is no biopsy for all of them: the
class is the radiologist's assessment.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from grandrounds.data.datasets.published import BENIGN, MALIGNANT, find_table, images_by_name
from grandrounds.data.images.mammogram import Laterality
from grandrounds.data.manifest import read_table
from grandrounds.errors import DataError
from published_data.mammography.options import BiradsThree
from published_data.mammography.records import Finding, Mammogram
from published_data.reading import NORMAL

INBREAST_SOURCE = "INbreast"
INBREAST_VENDOR = "Siemens"
INBREAST_TABLE = "INbreast.csv"
INBREAST_COLUMNS = ("File Name", "Bi-Rads", "Laterality", "View")
INBREAST_SIDES: tuple[Laterality, ...] = ("L", "R")


class _File(NamedTuple):
    """An image file: its path and the patient in its name."""

    path: str
    patient: str


def read_inbreast(root: Path | str, birads_3: BiradsThree = "malignant") -> tuple[Mammogram, ...]:
    """Read the published layout: ``INbreast.csv`` beside ``AllDICOMs``; of ``INbreast.xls`` save a copy as CSV.

    Patient and breast are in the names of the DICOM files, ``NUMBER_PATIENT_MG_SIDE_VIEW_ANON.dcm``; the table's column for
    patients is blank. ``birads_3`` is what an assessment of 3, probably benign, counts as: Jimenez-Sanchez et al. (2023)
    take 3 to 6 as malignant (287 and 123 images).

    Raises:
        DataError: if the table, a column, a value or an image is missing or wrong; file, line and column are named.
    """
    root = Path(root)
    table = find_table(root, (INBREAST_TABLE,), INBREAST_SOURCE)
    files = _files(root)
    found = []
    for line, row in read_table(table, INBREAST_COLUMNS):
        where = f"{table} line {line}"
        if not row["File Name"]:
            continue
        finding = _finding(row["Bi-Rads"], birads_3, where)
        if finding is not None:
            found.append(_mammogram(row, files, finding, where))
    if len({one.image for one in found}) < len(found):
        raise DataError(f"{table}: an image is listed twice; remove one row")
    return tuple(found)


def _files(root: Path) -> dict[str, _File]:
    """Image files by their number."""
    found: dict[str, _File] = {}
    for name, path in images_by_name(root, ".dcm").items():
        number, _, rest = name.partition("_")
        patient = rest.partition("_")[0]
        if patient:
            found.setdefault(number, _File(path, patient))
    return found


def _mammogram(row: Mapping[str, str], files: Mapping[str, _File], finding: Finding, where: str) -> Mammogram:
    number = row["File Name"]
    if number not in files:
        raise DataError(f"{where}, column File Name: no file {number}_PATIENT_....dcm was found; complete the data set")
    if row["Laterality"] not in INBREAST_SIDES:
        raise DataError(f"{where}, column Laterality: expected L or R, got {row['Laterality']!r}")
    return Mammogram(
        image=files[number].path,
        finding=finding,
        patient=files[number].patient,
        laterality="L" if row["Laterality"] == "L" else "R",
        view="CC" if row["View"] == "CC" else "MLO",
        vendor=INBREAST_VENDOR,
    )


def _finding(birads: str, birads_3: BiradsThree, where: str) -> Finding | None:
    """What an assessment means; None if it is to be left out. 4a, 4b and 4c are 4."""
    found: Mapping[str, Finding | None] = {
        "1": NORMAL,
        "2": BENIGN,
        "3": None if birads_3 == "drop" else birads_3,
        "4": MALIGNANT,
        "5": MALIGNANT,
        "6": MALIGNANT,
    }
    grade = birads.lower().rstrip("abc").strip()
    if grade not in found:
        raise DataError(f"{where}, column Bi-Rads: expected 1 to 6 or 4a to 4c, got {birads!r}")
    return found[grade]
