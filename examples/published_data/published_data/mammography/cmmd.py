"""CMMD, the Chinese mammography database: 5,202 digital mammograms of 1,775 patients with biopsies.

Source: C. Cui et al., "The Chinese Mammography Database (CMMD)", The Cancer Imaging Archive, 2021,
doi:10.7937/tcia.eqde-4b16 (CC BY 4.0). The table is of breasts; which breast an image shows, its view and its device are in
the DICOM headers alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from grandrounds.checks import require_known_label
from grandrounds.data.datasets.published import BENIGN, MALIGNANT, Progress, find_table
from grandrounds.data.image_files import Folder
from grandrounds.data.images.dicom import LATERALITY, read_header
from grandrounds.data.manifest import read_table
from grandrounds.errors import DataError
from published_data.mammography.records import Finding, Mammogram, View, most_severe, vendor_name
from published_data.reading import images_by_folder

CMMD_SOURCE = "CMMD"
CMMD_TABLE = "CMMD_clinicaldata_revision.csv"
CMMD_COLUMNS = ("ID1", "LeftRight", "classification")
CLASSIFICATION: Mapping[str, Finding] = {"Benign": BENIGN, "Malignant": MALIGNANT}
KEYWORDS = (*LATERALITY, "ViewPosition", "Manufacturer")
CMMD_VIEWS: Mapping[str, View] = {"CC": "CC", "MLO": "MLO"}

Breast = tuple[str, str]
"""A patient and a side."""


def read_cmmd(root: Path | str, progress: Progress | None = None) -> tuple[tuple[Mammogram, ...], dict[str, int]]:
    """Read the published layout: ``CMMD_clinicaldata_revision.csv`` and a folder of DICOM files per patient, anywhere below.

    The table is published as a spreadsheet; save it as CSV. ``progress`` gets the number of headers read and of all headers.

    Returns:
        The mammograms by patient and path; and the number of images of breasts that the table lacks (``without_label``).

    Raises:
        DataError: if the table, a column, a value or a patient's images are missing, or a header does not state the side.
    """
    root = Path(root)
    findings = _findings(root)
    files = images_by_folder(root, {patient for patient, _ in findings}, ".dcm")
    for patient, paths in files.items():
        if not paths:
            raise DataError(
                f"{root}: no DICOM file in a folder {patient}, which {CMMD_TABLE} has; complete the data set"
            )
    total = sum(len(paths) for paths in files.values())
    found: list[Mammogram] = []
    read = without = 0
    for patient, paths in files.items():
        for path in paths:
            one = _mammogram(root, path, patient, findings)
            found += [one] if one else []
            without += one is None
        read += len(paths)
        if progress:
            progress(read, total)
    return tuple(found), {"without_label": without}


def _findings(root: Path) -> dict[Breast, Finding]:
    table = find_table(root, (CMMD_TABLE,), CMMD_SOURCE)
    findings: dict[Breast, list[Finding]] = defaultdict(list)
    for line, row in read_table(table, CMMD_COLUMNS):
        where = f"{table} line {line}"
        if row["LeftRight"] not in ("L", "R"):
            raise DataError(f"{where}, column LeftRight: expected L or R, got {row['LeftRight']!r}")
        require_known_label(row["classification"], tuple(CLASSIFICATION), f"{where}, column classification")
        findings[row["ID1"], row["LeftRight"]].append(CLASSIFICATION[row["classification"]])
    return {breast: most_severe(own) for breast, own in findings.items()}


def _mammogram(root: Path, path: str, patient: str, findings: Mapping[Breast, Finding]) -> Mammogram | None:
    header = read_header(Folder(root).open, path, KEYWORDS)
    side = next((header[keyword] for keyword in LATERALITY if header[keyword] in ("L", "R")), None)
    if side is None:
        raise DataError(f"{root / path}: its DICOM header does not state the breast (ImageLaterality)")
    if (patient, side) not in findings:
        return None
    return Mammogram(
        image=path,
        finding=findings[patient, side],
        patient=patient,
        laterality="L" if side == "L" else "R",
        view=CMMD_VIEWS.get(header["ViewPosition"], ""),
        vendor=vendor_name(header["Manufacturer"]),
    )
