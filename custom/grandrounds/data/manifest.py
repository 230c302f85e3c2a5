"""Manifests: a site's list of images with label, split and patient; and CSV tables with errors that name file and line.

A manifest is a CSV file with the columns ``image, label, split, patient`` and, optionally, ``lesion, source,
labelled``. Further columns, such as age, sex, body site or device, are kept as text and define subgroups of the test
images. It holds no image, so it can be kept under version control with its SHA-256.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grandrounds.csv_files import Row, csv_cells, write_csv
from grandrounds.data.keys import NO_CHOICES, KeyChoices, canonical, key_of, settle
from grandrounds.errors import DataError
from grandrounds.files import file_digest
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE


def read_table(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> list[Row]:
    """Read the rows of a table, see :func:`~grandrounds.data.tables.open_table`; further columns are read too.

    Returns:
        One pair per row: the number of its last line in the file (the header is line 1) and its values by column.

    Raises:
        DataError: if the file is no table, or a column is missing; file and line are named.
    """
    from grandrounds.data.tables import Columns, open_table  # no training site needs it

    return list(open_table(path, Columns(tuple(required), tuple(optional))).rows)


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


def read_manifest(
    path: Path | str,
    classes: Sequence[str] | None = None,
    task: Task = SINGLE,
    choices: KeyChoices | None = None,
    split: str = "",
) -> tuple[Record, ...]:
    """Read and check a manifest; names are their keys (:mod:`~grandrounds.data.keys`).

    Args:
        path: of the file.
        classes: the vocabulary; without it any label is accepted.
        task: what a label is.
        choices: what the site says about near patients and lesions; None where these have been looked at.
        split: of all images of a file without a column ``split``; empty where it must have one.

    Raises:
        DataError: if the file is not a readable table, or a row has no image, an unknown split, label or flag, an image
            occurs twice, or a patient or lesion is in two splits; file, line and column are named. Also if ``choices`` are
            given and say nothing about patients or lesions that are near.
    """
    path = Path(path)
    required = tuple(name for name in REQUIRED_COLUMNS if not split or name != "split")
    rows = _plain_rows(path, required)
    if rows is None:
        rows = read_table(path, required, [name for name in MANIFEST_COLUMNS if name not in required])
    rows = [(line, {"split": split, **row}) for line, row in rows]
    keys = _keys(path, [row for _, row in rows], classes, task, choices)
    records = tuple(_record(row, f"{path} line {line}", classes, task, keys) for line, row in rows)
    lines = [line for line, _ in rows]
    _require_distinct_images(records, str(path), lines)
    require_grouped(records, str(path), lines)
    return records


def _plain_rows(path: Path, required: Sequence[str]) -> list[Row] | None:
    """The rows of a manifest in UTF-8 with commas and the headings of the package; None for any other table.

    A decimal comma makes it another table, which :mod:`~grandrounds.data.tables` reads.
    """
    try:
        text = path.read_bytes().decode()
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        lines = [(reader.line_num, csv_cells(values)) for values in reader if any(map(str.strip, values))]
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    (_, header), *rows = lines or [(0, [])]
    further = [index for index, name in enumerate(header) if name not in MANIFEST_COLUMNS]
    if not {*required} <= {*header} or not _is_plain_header(header) or not rows or "\0" in text:
        return None
    if any(len(values) != len(header) or any("," in values[index] for index in further) for _, values in rows):
        return None
    return [(line, dict(zip(header, map(str.strip, values), strict=True))) for line, values in rows]


def _is_plain_header(header: Sequence[str]) -> bool:
    """Whether the headings are plain text, differ from each other, and are spelt as those of the package."""
    further = {name.casefold() for name in header if name not in MANIFEST_COLUMNS}
    plain = all(name.isascii() and name.isprintable() and name == name.strip() for name in header)
    return plain and len({name.casefold() for name in header}) == len(header) and not further & {"", *MANIFEST_COLUMNS}


def write_manifest(records: Sequence[Record], path: Path | str) -> str:
    """Write a manifest so that no reader sees an incomplete file.

    The same records always give the same bytes: fixed column order, further columns as they first occur, LF line ends,
    UTF-8.

    Returns:
        The SHA-256 of the file's bytes, in hexadecimal.
    """
    return write_csv(Path(path), *manifest_table(records))


def manifest_table(records: Sequence[Record]) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """The header and the lines of a manifest."""
    further = list(dict.fromkeys(name for record in records for name, _ in record.more))
    rows = []
    for r in records:
        more = dict(r.more)
        flag = int(r.labelled and r.label != "")
        fixed = (r.image, r.label, r.split, r.patient, r.lesion, r.source, flag)
        rows.append((*fixed, *(more.get(name, "") for name in further)))
    return (*MANIFEST_COLUMNS, *further), rows


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
        return file_digest(Path(path))
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


def _keys(
    path: Path, rows: Sequence[Mapping[str, str]], classes: Sequence[str] | None, task: Task, choices: KeyChoices | None
) -> dict[str, dict[str, str]]:
    """The key of each name, by column."""
    stated = choices or NO_CHOICES
    words = {canonical(name): name for name in classes or ()}
    labels = {name for row in rows for name in task.mentioned_in(row["label"])}
    keys = {"label": {name: key_of("label", name, stated, words) for name in labels}}
    keys["source"] = {name: key_of("source", name) for name in {row.get("source", "") for row in rows}}
    for kind in ("patient", "lesion"):
        names = [row.get(kind, "") for row in rows]
        if choices is None:
            keys[kind] = {name: key_of(kind, name) for name in set(names)}
        else:
            keys[kind] = settle(kind, names, str(path), choices, in_file=True)
    return keys


def _record(
    row: Mapping[str, str], where: str, classes: Sequence[str] | None, task: Task, keys: Mapping[str, Mapping[str, str]]
) -> Record:
    if not row["image"]:
        raise DataError(f"{where}, column image: the image's name is missing")
    if row["split"] not in SPLITS:
        raise DataError(f"{where}, column split: expected one of {', '.join(SPLITS)}, got {row['split']!r}")
    label = task.respelled(row["label"], keys["label"])
    if label and classes is not None:
        task.require_label(label, classes, f"{where}, column label")
    flag = row.get("labelled", "").lower()
    if flag not in LABELLED_FLAGS:
        raise DataError(f"{where}, column labelled: expected 0, 1, true or false, got {row['labelled']!r}")
    return Record(
        image=row["image"],
        label=label,
        split=row["split"],
        patient=keys["patient"][row["patient"]],
        lesion=keys["lesion"][row.get("lesion", "")],
        source=keys["source"][row.get("source", "")],
        labelled=LABELLED_FLAGS[flag],
        more=further_columns(row, MANIFEST_COLUMNS),
    )


def _require_distinct_images(records: Sequence[Record], where: str, lines: Sequence[int]) -> None:
    first: dict[str, int] = {}
    for record, line in zip(records, lines, strict=True):
        earlier = first.setdefault(record.image, line)
        if earlier != line:
            raise DataError(
                f"{where} line {line}, column image: {record.image!r} is already on line {earlier}; keep one"
            )
