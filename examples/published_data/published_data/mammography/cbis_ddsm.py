"""CBIS-DDSM: scanned films with masses or calcifications whose pathology is known.

Source: R. Lee et al., "A curated mammography data set for use in computer-aided detection and diagnosis research",
Scientific Data 4:170177, 2017 (CC BY 3.0). A film with a mass and a calcification is there twice, and some patients are in
the training set of one and in the test set of the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grandrounds.checks import require_known_label
from grandrounds.data.datasets.published import BENIGN, MALIGNANT
from grandrounds.data.manifest import read_table
from grandrounds.errors import DataError
from published_data.mammography.records import Finding, Mammogram, most_severe
from published_data.reading import images_by_folder

CBIS_DDSM_SOURCE = "CBIS-DDSM"
CBIS_DDSM_VENDOR = "film"
CBIS_DDSM_TABLES: Mapping[str, bool] = {
    "mass_case_description_train_set.csv": False,
    "mass_case_description_test_set.csv": True,
    "calc_case_description_train_set.csv": False,
    "calc_case_description_test_set.csv": True,
}
"""The four tables, and whether each is for testing."""

CBIS_DDSM_COLUMNS = ("patient_id", "left or right breast", "image view", "pathology", "image file path")
PATHOLOGY: Mapping[str, Finding] = {
    "BENIGN": BENIGN,
    "BENIGN_WITHOUT_CALLBACK": BENIGN,
    "MALIGNANT": MALIGNANT,
}
CBIS_DDSM_SIDES = ("LEFT", "RIGHT")
CBIS_DDSM_VIEWS = ("CC", "MLO")


@dataclass(frozen=True, slots=True)
class _Abnormality:
    """One row of a table."""

    patient: str
    side: str
    view: str
    finding: Finding
    path: str
    test: bool
    where: str


def read_cbis_ddsm(root: Path | str) -> tuple[tuple[Mammogram, ...], dict[str, int]]:
    """Read whole mammograms from the published layout: the four tables in ``root`` and the DICOM files anywhere below.

    The folders of a download may differ from the tables' paths, so only the first folder counts, such as
    ``Mass-Training_P_00001_LEFT_CC``, which contains one film. All abnormalities of a film, in all four tables, are one
    record with the most severe pathology. Cropped images and outlines are not needed.

    Returns:
        The mammograms in the order of the tables, and how many rows there are (``abnormalities``) and how many patients of
        the published test sets are also in training sets (``patients_in_both``), whose films all count as training.

    Raises:
        DataError: if a table, a column, a value or an image is missing or wrong; file and line are named.
    """
    root = Path(root)
    rows = [row for name, test in CBIS_DDSM_TABLES.items() for row in _abnormalities(root / name, test)]
    trained = {row.patient for row in rows if not row.test}
    both = {row.patient for row in rows if row.test} & trained
    films: dict[tuple[str, str, str], list[_Abnormality]] = defaultdict(list)
    for row in rows:
        films[row.patient, row.side, row.view].append(row)
    files = images_by_folder(root, {row.path.partition("/")[0] for row in rows}, ".dcm")
    found = tuple(_mammogram(own, files, own[0].patient not in trained) for own in films.values())
    return found, {"abnormalities": len(rows), "patients_in_both": len(both)}


def _abnormalities(table: Path, test: bool) -> Iterable[_Abnormality]:
    if not table.is_file():
        raise DataError(f"no {CBIS_DDSM_SOURCE} in {table.parent}: {table.name} is missing; all four tables are needed")
    for line, row in read_table(table, CBIS_DDSM_COLUMNS):
        where = f"{table} line {line}"
        side, view = row["left or right breast"], row["image view"]
        for column, value, known in (
            ("left or right breast", side, CBIS_DDSM_SIDES),
            ("image view", view, CBIS_DDSM_VIEWS),
        ):
            if value not in known:
                raise DataError(f"{where}, column {column}: expected {' or '.join(known)}, got {value!r}")
        require_known_label(row["pathology"], tuple(PATHOLOGY), f"{where}, column pathology")
        yield _Abnormality(
            row["patient_id"], side, view, PATHOLOGY[row["pathology"]], row["image file path"], test, where
        )


def _mammogram(rows: Sequence[_Abnormality], files: Mapping[str, Sequence[str]], test: bool) -> Mammogram:
    first = rows[0]
    return Mammogram(
        image=_film(rows, files),
        finding=most_severe([row.finding for row in rows]),
        patient=first.patient,
        laterality="L" if first.side == "LEFT" else "R",
        view="CC" if first.view == "CC" else "MLO",
        vendor=CBIS_DDSM_VENDOR,
        test=test,
    )


def _film(rows: Sequence[_Abnormality], files: Mapping[str, Sequence[str]]) -> str:
    """The film's file: of the folder's only file, or the one with the path in the table."""
    for row in rows:
        there = files.get(row.path.partition("/")[0], ())
        named = [path for path in there if path.endswith(row.path)]
        if named or len(there) == 1:
            return (named or list(there))[0]
        if there:
            raise DataError(
                f"{row.where}: {len(there)} DICOM files in {row.path.partition('/')[0]}, expected the film alone"
            )
    first = rows[0]
    raise DataError(f"{first.where}: no DICOM file in a folder {first.path.partition('/')[0]}; complete the data set")
