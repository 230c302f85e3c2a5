"""CSV files, written whole or not at all, in which no text is a formula to a spreadsheet.

Names of classes, sites and files are of other people. A text that a spreadsheet would compute has an apostrophe before it,
which :func:`csv_cells` takes off again; numbers stay as they are.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Sequence
from numbers import Number
from pathlib import Path
from typing import Any

from grandrounds.files import write_bytes

Row = tuple[int, dict[str, str]]
"""The line of a row in its file, and its values by column."""
# Some spreadsheets take the wide signs for the plain ones.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_SIGNED_NUMBER = re.compile(r"[+-]([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    r"""A table as CSV with LF line ends in UTF-8; the same table always gives the same bytes.

    Example:
        >>> csv_bytes(["image", "label"], [("a,b.png", 1)])
        b'image,label\n"a,b.png",1\n'
        >>> csv_bytes(["=label"], [("-0.5",), ("-a",)])
        b"'=label\n-0.5\n'-a\n"
    """
    lines = _Lines()
    # With this line end csv also quotes a lone CR, which would end the row and let the rest begin a cell.
    csv.writer(lines, lineterminator="\r\n").writerows([_shown(cell) for cell in row] for row in (header, *rows))
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines).encode()


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]], private: bool = False) -> str:
    """Write a table as CSV, atomically; a ``private`` file is for its owner alone.

    Returns:
        The SHA-256 of the file's bytes, in hexadecimal.
    """
    content = csv_bytes(header, rows)
    write_bytes(path, content, private)
    return hashlib.sha256(content).hexdigest()


def csv_cells(row: Iterable[str]) -> list[str]:
    """The cells of a row as they were before :func:`csv_bytes` has written them.

    Example:
        >>> csv_cells(["'=label", "'a'", "-0.5"])
        ['=label', "'a'", '-0.5']
    """
    return [cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell for cell in row]


class _Lines(list[str]):
    """What csv writes to, a row a call."""

    write = list.append


def _shown(cell: Any) -> Any:
    text = str(cell)
    is_number = isinstance(cell, Number) or _SIGNED_NUMBER.fullmatch(text)
    return f"'{text}" if _FORMULA.match(text) and not is_number else cell
