"""The labels of the RSNA haemorrhage challenge: one row for each slice and subtype, 4.5 million in all.

Whose a slice is: the identifier is in the DICOM headers, and reading them takes long enough to write it down.

The table has the columns ``image`` (without ``.dcm``) and ``patient``. It may come from elsewhere; what it lacks is read
from the headers and added to it.

RSNA intracranial haemorrhage: CT slices of heads, five subtypes of haemorrhage.

Source: A. Flanders et al., "Construction of a machine learning dataset through collaboration: the RSNA 2019 brain CT
hemorrhage challenge", Radiology: Artificial Intelligence 2:e190211, 2020 (research use). Q. Liu et al., "Federated
semi-supervised medical image classification via inter-client relation matching", MICCAI 2021, take 25,000 slices with a
subtype from its 752,803 of the second stage.
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

import grandrounds as gr
from grandrounds.csv_files import write_csv
from grandrounds.data.datasets.published import Progress, ReadDataset, find_table, image_called
from grandrounds.data.images.dicom import HAEMORRHAGE_WINDOWS
from grandrounds.data.images.files.reading import Reading, windows_from
from grandrounds.data.manifest import Record, read_table
from grandrounds.data.options import DIVISION, PartitionOptions, Windows
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.options import Min
from grandrounds.protocol.tasks import FINDINGS
from grandrounds.seeding import numpy_generator
from published_data.reading import read_patient

Several = Literal["drop", "first", "keep"]
ClientPartition = Literal["patient", "slice"]
RSNA_ICH_CLASSES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
ANY = "any"
RSNA_COLUMNS = ["ID", "Label"]

SUBTYPES = len(RSNA_ICH_CLASSES)
ALL_KNOWN = 2**SUBTYPES - 1


@dataclass(frozen=True, kw_only=True)
class CtOptions(PartitionOptions):
    """Options of RSNA-ICH."""

    scheme: Annotated[str, DIVISION] = "iid"
    several: Annotated[Several, "drop slices with several subtypes, take their first, or keep all as findings"] = "drop"
    slices: Annotated[int, "number of slices to draw, patient by patient", Min(1)] = 25_000
    patients: Annotated[Path | None, "table image,patient, completed from headers; ROOT/patients.csv"] = None
    client_partition: Annotated[ClientPartition, "for iid: a site gets patients, or slices (FedIRM paper)"] = "patient"
    windows: Annotated[Windows, "CENTRE:WIDTH,... of the channels in Hounsfield units; three by default"] = ()

    def check(self) -> None:
        """Refuse options that contradict each other or the scheme."""
        super().check()
        if self.client_partition == "slice" and self.scheme != "iid":
            raise ConfigurationError(f"client_partition slice is for the scheme iid, got {self.scheme}")

    @property
    def shares_patients(self) -> bool:
        """Whether a patient's images may be at several sites, as in the FedIRM paper."""
        return self.client_partition == "slice"


def read_subtypes(table: Path) -> dict[str, tuple[str, ...]]:
    """Read the subtypes of each slice from ``stage_2_train.csv``.

    The table is read row by row, because as a whole it takes gigabytes. The published one has some rows twice.

    Returns:
        The subtypes by slice, in the order of ``RSNA_ICH_CLASSES`` and of the slices' first rows; empty without haemorrhage.

    Raises:
        DataError: if the file is not such a table, rows contradict each other or a slice lacks a subtype; file and line are
            named.
    """
    codes = _codes()
    found: dict[str, int] = {}
    for line, (identifier, label) in _rows(table):
        image, _, subtype = identifier.rpartition("_")
        code = codes.get((subtype, label))
        if code is None or not image:
            raise DataError(f"{table} line {line}: {_complaint(image, subtype, label)}")
        known = found.get(image, 0)
        both = known | code
        if both >> SUBTYPES & both & ALL_KNOWN:
            raise DataError(f"{table} line {line}: {identifier} is both 0 and 1; remove the wrong row")
        found[image] = both
    return _named(found, table)


def single_labels(subtypes: Mapping[str, tuple[str, ...]], several: Several) -> tuple[dict[str, str], dict[str, int]]:
    """One class for each slice with a haemorrhage; ``keep`` counts as ``first``.

    A slice with several subtypes is left out (``drop``), or counts as the first in the order of ``RSNA_ICH_CLASSES``
    (``first``), as Liu et al. (MICCAI 2021) do by taking the maximum.

    Returns:
        The classes by slice, and how many slices have no subtype and how many several.

    Example:
        >>> single_labels({"a": ("epidural",), "b": (), "c": ("epidural", "subdural")}, "drop")
        ({'a': 'epidural'}, {'without_subtype': 1, 'several_subtypes': 1})
    """
    most = 1 if several == "drop" else SUBTYPES
    chosen = {image: names[0] for image, names in subtypes.items() if 1 <= len(names) <= most}
    counts = {
        "without_subtype": sum(not names for names in subtypes.values()),
        "several_subtypes": sum(len(names) > 1 for names in subtypes.values()),
    }
    return chosen, counts


def all_labels(subtypes: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """All subtypes of each slice as findings, as published; ``any`` is whether there is one.

    Example:
        >>> all_labels({"a": ("epidural", "subdural"), "b": ()})
        {'a': 'epidural|subdural|any', 'b': 'none'}
    """
    return {image: FINDINGS.cell([*names, ANY] if names else []) for image, names in subtypes.items()}


def _codes() -> dict[tuple[str, str], int]:
    """The label of a row as bits: the lower half is set for present subtypes, the upper half for absent ones."""
    codes = {(ANY, "0"): 0, (ANY, "1"): 0}
    for index, name in enumerate(RSNA_ICH_CLASSES):
        codes |= {(name, "1"): 1 << index, (name, "0"): 1 << index + SUBTYPES}
    return codes


def _rows(table: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        with table.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream, strict=True)
            header = [name.strip() for name in next(rows, [])]
            if header != RSNA_COLUMNS:
                raise DataError(
                    f"{table} line 1: expected the columns {', '.join(RSNA_COLUMNS)}, got {', '.join(header)}"
                )
            for row in rows:
                if len(row) != len(RSNA_COLUMNS):
                    raise DataError(f"{table} line {rows.line_num} has {len(row)} values, expected {len(RSNA_COLUMNS)}")
                yield rows.line_num, row
    except OSError as error:
        raise DataError(f"{table} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{table} is not a CSV file in UTF-8: {error}") from error


def _complaint(image: str, subtype: str, label: str) -> str:
    if not image or subtype not in (*RSNA_ICH_CLASSES, ANY):
        expected = ", ".join((*RSNA_ICH_CLASSES, ANY))
        return f"ID must be an image, _ and one of {expected}; got {f'{image}_{subtype}' if image else subtype!r}"
    return f"Label must be 0 or 1, got {label!r}"


def _named(found: Mapping[str, int], table: Path) -> dict[str, tuple[str, ...]]:
    if not found:
        raise DataError(f"{table} has a header but no rows; download it again")
    named: dict[int, tuple[str, ...]] = {}
    for image, code in found.items():
        missing = ALL_KNOWN & ~(code | code >> SUBTYPES)
        if missing:
            first = RSNA_ICH_CLASSES[(missing & -missing).bit_length() - 1]
            raise DataError(f"{table}: image {image!r} has no row for {first}; download the table again")
        if code not in named:
            named[code] = tuple(name for index, name in enumerate(RSNA_ICH_CLASSES) if code >> index & 1)
    return {image: named[code] for image, code in found.items()}


PATIENT_COLUMNS = ("image", "patient")
DICOM_SUFFIX = ".dcm"
STEP = 100
"""How many headers are read between two reports of progress."""


def find_patients(files: Mapping[str, Path], table: Path, progress: Progress | None = None) -> dict[str, str]:
    """The patient of every image, from the table or else from the images' headers.

    Patients read from headers are added to the table, also after an interruption, so that each header is read once.

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
            write_csv(table, PATIENT_COLUMNS, sorted({**known, **found}.items()))
    if progress:
        progress(len(missing), len(missing))
    return found


def _read(table: Path) -> dict[str, str]:
    patients: dict[str, str] = {}
    for line, row in read_table(table, PATIENT_COLUMNS):
        image = row["image"].removesuffix(DICOM_SUFFIX)
        for column in PATIENT_COLUMNS:
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


RSNA_TABLE = "stage_2_train.csv"
RSNA_FOLDERS = ("stage_2_train", "stage_2_train_images")
PATIENT_TABLE = "patients.csv"
RSNA_SOURCE = "RSNA-ICH"
_KEPT: Mapping[Several, str] = {"drop": "with exactly one subtype", "first": "with a subtype", "keep": "in the folder"}


def read_rsna_ich(
    root: Path | str, options: CtOptions, progress: Progress | None = None
) -> tuple[tuple[Record, ...], dict[str, int]]:
    """Read slices with a haemorrhage from the published layout; with ``several=keep`` those without that are there, too.

    That is ``stage_2_train.csv`` beside the folder ``stage_2_train`` or ``stage_2_train_images`` of ``.dcm`` files. Slices
    without a subtype are not part of the problem and need not be there.

    The first time, the headers of all slices with a subtype are read for the table of patients, see :func:`find_patients`;
    ``progress`` gets the number of headers read and of all headers.

    Returns:
        The records with the classes of ``RSNA_ICH_CLASSES``, all in split ``train``, images as paths below ``root``; and
        how many slices of the table have no subtype, and how many several.

    Raises:
        DataError: if a table, a file or a patient is missing or wrong, or there are fewer slices than are asked for.
        ConfigurationError: if the table of patients must be written and cannot be.
    """
    root = Path(root)
    table = find_table(root, (RSNA_TABLE,), "RSNA-ICH")
    subtypes, images = read_subtypes(table), _images(root)
    labels, counts = single_labels(subtypes, options.several)
    if options.several == "keep":
        labels = all_labels({image: names for image, names in subtypes.items() if names or image in images})
    paths = {image: image_called(image, images, str(table), root) for image in labels}
    files = {image: root / path for image, path in paths.items()}
    owners = find_patients(files, options.patients or root / PATIENT_TABLE, progress)
    records = tuple(
        Record(paths[image], label, patient=owners[image], source=RSNA_SOURCE) for image, label in labels.items()
    )
    if options.slices > len(records):
        raise DataError(
            f"{table}: {len(records)} slices {_KEPT[options.several]}, asked for {options.slices}; ask for fewer slices"
        )
    generator = numpy_generator(options.seed, "rsna_ich", "slices")
    return draw_slices(records, options.slices, generator), counts


def draw_slices(records: Sequence[Record], slices: int, generator: np.random.Generator) -> tuple[Record, ...]:
    """Draw patients at random until their slices suffice; of the last one only as many are taken as are missing.

    Returns:
        That many records, or all if there are fewer, in their order.

    Example:
        >>> three = [Record("a", "subdural", patient="p"), Record("b", "epidural", patient="p")]
        >>> [record.image for record in draw_slices(three, 1, np.random.default_rng(0))]
        ['a']
    """
    of_patient: dict[str, list[int]] = defaultdict(list)
    for index, record in enumerate(records):
        of_patient[record.patient].append(index)
    members = list(of_patient.values())
    drawn: list[int] = []
    for patient in generator.permutation(len(members)):
        drawn.extend(members[patient][: slices - len(drawn)])
        if len(drawn) == slices:
            break
    return tuple(records[index] for index in sorted(drawn))


def _images(root: Path) -> Mapping[str, str]:
    """Path below ``root`` of every slice, by its name; one flat folder, so no walk through all below."""
    for folder in RSNA_FOLDERS:
        if (root / folder).is_dir():
            with os.scandir(root / folder) as entries:
                names = (entry.name for entry in entries if entry.name.endswith(DICOM_SUFFIX))
                return {name.removesuffix(DICOM_SUFFIX): f"{folder}/{name}" for name in names}
    raise DataError(f"no images in {root}: looked for the folders {', '.join(RSNA_FOLDERS)}; unpack the slices there")


@gr.register_dataset("rsna_ich", options=CtOptions)
def rsna_ich(root: Path, options: CtOptions, progress: Progress | None = None) -> ReadDataset:
    """RSNA haemorrhages: stage_2_train.csv and the folder stage_2_train of DICOM files."""
    reading = Reading(windows_from(options.windows, "windows") if options.windows else HAEMORRHAGE_WINDOWS)
    records, counts = read_rsna_ich(root, options, progress)
    facts = {"several": options.several, "slices": options.slices, "in_the_table": counts}
    if options.several == "keep":
        return ReadDataset(records, root, (*RSNA_ICH_CLASSES, ANY), facts, reading, "ich", task=FINDINGS)
    return ReadDataset(records, root, RSNA_ICH_CLASSES, facts, reading, "ich")
