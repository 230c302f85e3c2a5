"""Reading a CSV table with errors that name the file and the line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from grandrounds.errors import DataError

Row = tuple[int, dict[str, str]]


def read_table(path: Path, required: Sequence[str], delimiter: str = ",") -> list[Row]:
    """Read the rows of a separated UTF-8 file with a header.

    Names and values lose the blanks around them; blank lines are skipped; a byte-order mark is accepted.

    Args:
        path: the file.
        required: columns that must be there; others are read too.
        delimiter: what stands between two values.

    Returns:
        One pair per row: the number of its last line in the file (the header is line 1) and its values by column.

    Raises:
        DataError: if the file cannot be read, is not UTF-8, is empty or has no rows, if a column is missing or occurs
            twice, or if a row has more or fewer values than the header; file and line are named.
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
    # csv counts lines on the reader object, which its type does not tell.
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
