"""The drawn labels of a site as a file beside its manifest: what is wrong, and how to undo it."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from grandrounds.data.csv_table import read_table
from grandrounds.data.label_noise import DrawnLabel
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError
from grandrounds.files import replacing

COLUMNS = ("image", "clean", "noisy")


def write_drawn_labels(labels: Sequence[DrawnLabel], path: Path) -> str:
    """Write the drawn labels as CSV, so that nobody ever sees half of it.

    Returns:
        The SHA-256 of the file's bytes, in hexadecimal.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((label.image, label.clean, label.noisy) for label in labels)
    content = text.getvalue().encode()
    with replacing(path) as stream:
        stream.write(content)
    return hashlib.sha256(content).hexdigest()


def read_drawn_labels(path: Path) -> tuple[DrawnLabel, ...]:
    """Read drawn labels.

    Raises:
        DataError: if the file is no table with these columns and at least one row, or names an image twice.
    """
    labels: dict[str, DrawnLabel] = {}
    for line, row in read_table(path, COLUMNS):
        if row["image"] in labels:
            raise DataError(f"{path} line {line}: image {row['image']!r} is listed twice; remove one row")
        labels[row["image"]] = DrawnLabel(row["image"], row["clean"], row["noisy"])
    return tuple(labels.values())


def clean_records(records: Sequence[Record], labels: Sequence[DrawnLabel], where: str) -> tuple[Record, ...]:
    """Undo the draw: the records with their clean labels.

    Args:
        records: with noisy labels.
        labels: drawn for these records.
        where: file or site, for the message.

    Raises:
        DataError: if a label was drawn for no record, or the record has another one.
    """
    place = {record.image: index for index, record in enumerate(records)}
    result = list(records)
    for drawn in labels:
        if drawn.image not in place:
            raise DataError(f"{where}: a label was drawn for image {drawn.image!r}, which is not in the manifest")
        record = records[place[drawn.image]]
        if record.label != drawn.noisy:
            raise DataError(
                f"{where}: image {drawn.image!r} should have the drawn label {drawn.noisy!r}, got {record.label!r}; "
                "manifest and drawn labels do not belong together"
            )
        result[place[drawn.image]] = replace(record, label=drawn.clean)
    return tuple(result)
