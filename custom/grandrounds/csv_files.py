"""CSV files, written whole or not at all."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grandrounds.files import replacing


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    r"""A table as CSV with LF line ends in UTF-8; the same table always gives the same bytes.

    Example:
        >>> csv_bytes(["image", "label"], [("a,b.png", 1)])
        b'image,label\n"a,b.png",1\n'
    """
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
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
