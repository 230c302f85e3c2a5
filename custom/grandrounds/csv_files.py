"""CSV files, written whole or not at all, in which no text is a formula to a spreadsheet.

Names of classes, sites and files are of other people. A text that a spreadsheet would compute has an apostrophe before it,
which :func:`csv_cells` takes off again; numbers stay as they are.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grandrounds.files import replacing

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_GUARDED = re.compile(r"'+[=+\-@\t\r]")


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    r"""A table as CSV with LF line ends in UTF-8; the same table always gives the same bytes.

    Example:
        >>> csv_bytes(["image", "label"], [("a,b.png", 1)])
        b'image,label\n"a,b.png",1\n'
        >>> csv_bytes(["=label"], [("-0.5",), ("-a",)])
        b"'=label\n-0.5\n'-a\n"
    """
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([_shown(cell) for cell in row] for row in (header, *rows))
    return text.getvalue().encode()


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write a table as CSV, atomically.

    Returns:
        The SHA-256 of the file's bytes, in hexadecimal.
    """
    content = csv_bytes(header, rows)
    with replacing(path) as stream:
        stream.write(content)
    return hashlib.sha256(content).hexdigest()


def csv_cells(row: Iterable[str]) -> list[str]:
    """The cells of a row as they were before :func:`csv_bytes` has written them.

    Example:
        >>> csv_cells(["'=label", "'a'", "-0.5"])
        ['=label', "'a'", '-0.5']
    """
    return [cell[1:] if _GUARDED.match(cell) else cell for cell in row]


def _shown(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) and not _is_number(cell) else cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
