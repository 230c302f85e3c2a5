"""Manifests: a site's list of images with label, split and patient; and CSV tables with errors that name file and line.

A manifest is a CSV file with the columns ``image, label, split, patient`` and, optionally, ``lesion, source,
labelled``. Further columns, such as age, sex, body site or device, are kept as text and define subgroups of the test
images. It holds no image, so it can be kept under version control with its SHA-256.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grandrounds.errors import DataError
from grandrounds.files import write_csv
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE

Row = tuple[int, dict[str, str]]


def read_table(path: Path, required: Sequence[str], delimiter: str = ",") -> list[Row]:
    """Read the rows of a separated UTF-8 file with a header; columns beside the ``required`` ones are read too.

    Names and values lose the blanks around them; blank lines are skipped; a byte-order mark is accepted.

    Returns:
        One pair per row: the number of its last line in the file (the header is line 1) and its values by column.

    Raises:
        DataError: if the file cannot be read, is not UTF-8 or has no rows, if a column is missing or occurs twice, or if a
            row has more or fewer values than the header; file and line are named.
    """
    reader = csv.reader(io.StringIO(_read_text(path), newline=""), delimiter=delimiter, strict=True)
    lines = _non_blank(reader, path)
    first = next(lines, None)
    if first is None:
        raise DataError(f"{path} is empty; expected a header with the columns {', '.join(required)}")
    columns = _check_header([name.strip() for name in first[1]], required, f"{path} line {first[0]}")
    rows = [(line, _row(columns, values, f"{path} line {line}")) for line, values in lines]
    if not rows:
        raise DataError(f"{path} has a header but no rows; add one row per image")
    return rows


def _read_text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path} line {line} is not UTF-8; save the file with UTF-8 encoding") from error


def _non_blank(reader: Iterator[list[str]], path: Path) -> Iterator[tuple[int, list[str]]]:
    # csv counts lines on the reader object, which its type does not declare.
    line = 0
    try:
        for values in reader:
            line = int(getattr(reader, "line_num", line + 1))
            if any(value.strip() for value in values):
                yield line, values
    except csv.Error as error:
        raise DataError(f"{path} line {line + 1} is not valid CSV: {error}") from error


def _check_header(columns: list[str], required: Sequence[str], where: str) -> list[str]:
    for name in columns:
        if columns.count(name) > 1:
            raise DataError(f"{where}: column {name!r} occurs twice; keep one")
    for name in required:
        if name not in columns:
            found = ", ".join(columns)
            raise DataError(f"{where}: column {name!r} is missing; expected {', '.join(required)}, found {found}")
    return columns


def _row(columns: list[str], values: list[str], where: str) -> dict[str, str]:
    if len(values) != len(columns):
        raise DataError(f"{where} has {len(values)} values, expected {len(columns)} as in the header")
    return {name: value.strip() for name, value in zip(columns, values, strict=True)}


SPLITS = ("train", "val", "test")
REQUIRED_COLUMNS = ("image", "label", "split", "patient")
MANIFEST_COLUMNS = (*REQUIRED_COLUMNS, "lesion", "source", "labelled")
LABELLED_FLAGS: Mapping[str, bool] = {"": True, "1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, slots=True)
class Record:
    """One image of a manifest.

    Attributes:
        image: the image's name under the data set's root.
        label: its class, or its findings (:mod:`~grandrounds.protocol.task_multi`); empty if unknown.
        split: ``train``, ``val`` or ``test``.
        patient: whose it is; may be empty.
        lesion: which lesion it shows, when there are several images of one; may be empty.
        source: device, hospital or data set it comes from; may be empty.
        labelled: whether training may use the label. False hides a known label, which then serves diagnostics and
            upper bounds only; always False without a label.
        more: the further columns and their values.
    """

    image: str
    label: str = ""
    split: str = "train"
    patient: str = ""
    lesion: str = ""
    source: str = ""
    labelled: bool = True
    more: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split of image {self.image!r} must be one of {', '.join(SPLITS)}, got {self.split!r}")
        if not self.label:
            object.__setattr__(self, "labelled", False)

    @property
    def group(self) -> str:
        """What must never be divided between splits: the patient, else the lesion, else the image itself."""
        return self.patient or self.lesion or self.image


@dataclass(frozen=True)
class Manifest:
    """The records of a site and the file they came from."""

    records: tuple[Record, ...]
    path: Path | None = None


def read_manifest(path: Path | str, classes: Sequence[str] | None = None, task: Task = SINGLE) -> Manifest:
    """Read and check a manifest; without ``classes``, the vocabulary, any label is accepted.

    What a label may be is the task's.

    Raises:
        DataError: if the file is not a readable table, or a row has no image, an unknown split, label or flag, an image
            occurs twice, or a patient or lesion is in two splits; file, line and column are named.
    """
    path = Path(path)
    rows = read_table(path, REQUIRED_COLUMNS)
    records = tuple(_record(row, f"{path} line {line}", classes, task) for line, row in rows)
    lines = [line for line, _ in rows]
    _require_distinct_images(records, str(path), lines)
    require_grouped(records, str(path), lines)
    return Manifest(records, path)


def write_manifest(manifest: Manifest | Iterable[Record], path: Path | str) -> str:
    """Write a manifest so that no reader sees an incomplete file.

    The same records always give the same bytes: fixed column order, further columns as they first occur, LF line ends,
    UTF-8.

    Returns:
        The SHA-256 of the file's bytes, in hexadecimal.
    """
    records = tuple(manifest.records if isinstance(manifest, Manifest) else manifest)
    further = list(dict.fromkeys(name for record in records for name, _ in record.more))
    rows = []
    for r in records:
        more = dict(r.more)
        flag = int(r.labelled and r.label != "")
        fixed = (r.image, r.label, r.split, r.patient, r.lesion, r.source, flag)
        rows.append((*fixed, *(more.get(name, "") for name in further)))
    return write_csv(Path(path), (*MANIFEST_COLUMNS, *further), rows)


def further_columns(row: Mapping[str, str], known: Collection[str]) -> tuple[tuple[str, str], ...]:
    """The columns of a row that have a name and are not among the ``known`` ones, with their values.

    Example:
        >>> further_columns({"image": "a.png", "age": "45", "": "x"}, ["image"])
        (('age', '45'),)
    """
    return tuple((name, value) for name, value in row.items() if name and name not in known)


def manifest_digest(path: Path | str) -> str:
    """The SHA-256 of a manifest's bytes, in hexadecimal.

    Raises:
        DataError: if the file cannot be read.
    """
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def require_grouped(records: Sequence[Record], where: str, lines: Sequence[int] | None = None) -> None:
    """Check that no patient and no lesion is in two splits.

    Raises:
        DataError: naming ``where``, the first patient or lesion that is divided, both splits and a line of each: those of
            ``lines``, or of the file that ``write_manifest`` would write.
    """
    numbers = range(2, len(records) + 2) if lines is None else lines
    first: dict[tuple[str, str], tuple[str, int]] = {}
    for record, line in zip(records, numbers, strict=True):
        for kind, name in (("patient", record.patient), ("lesion", record.lesion)):
            if not name:
                continue
            split, earlier = first.setdefault((kind, name), (record.split, line))
            if split != record.split:
                raise DataError(
                    f"{where}: {kind} {name!r} is in two splits, {split} (line {earlier}) and {record.split} "
                    f"(line {line}); keep all images of a {kind} in one split"
                )


def _record(row: Mapping[str, str], where: str, classes: Sequence[str] | None, task: Task) -> Record:
    if not row["image"]:
        raise DataError(f"{where}, column image: the image's name is missing")
    if row["split"] not in SPLITS:
        raise DataError(f"{where}, column split: expected one of {', '.join(SPLITS)}, got {row['split']!r}")
    label = row["label"]
    if label and classes is not None:
        task.require_label(label, classes, f"{where}, column label")
    flag = row.get("labelled", "").lower()
    if flag not in LABELLED_FLAGS:
        raise DataError(f"{where}, column labelled: expected 0, 1, true or false, got {row['labelled']!r}")
    return Record(
        image=row["image"],
        label=label,
        split=row["split"],
        patient=row["patient"],
        lesion=row.get("lesion", ""),
        source=row.get("source", ""),
        labelled=LABELLED_FLAGS[flag],
        more=further_columns(row, MANIFEST_COLUMNS),
    )


def _require_distinct_images(records: Sequence[Record], where: str, lines: Sequence[int]) -> None:
    first: dict[str, int] = {}
    for record, line in zip(records, lines, strict=True):
        earlier = first.setdefault(record.image, line)
        if earlier != line:
            raise DataError(f"{where} line {line}, column image: {record.image!r} is already on line {earlier}")
