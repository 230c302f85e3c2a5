"""A file into which a running program writes does not grow for ever."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from grandrounds.files import replacing

CHUNK = 1 << 20


def older(log: Path) -> Path:
    """Where the older part of a log is.

    Example:
        >>> older(Path("console.txt")).name
        'console.1.txt'
    """
    return log.with_suffix(f".1{log.suffix}")


def bound(log: Path, limit: int) -> bool:
    """Empty a log of more than ``limit`` bytes; its last bytes, at most as many, are the older part.

    Programs that have it open for appending go on at its new end. Lines that come between copy and cut are lost. Where
    there is no room for a copy, for example on a full disk, the log is emptied without one.

    Returns:
        Whether it was emptied.
    """
    try:
        size = log.stat().st_size
        if size <= limit:
            return False
        with suppress(OSError):
            _copy_end(log, older(log), size - limit, limit)
        os.truncate(log, 0)
    except OSError:  # it was removed, or cannot be written: later, then
        return False
    return True


def _copy_end(log: Path, copy: Path, start: int, length: int) -> None:
    with log.open("rb") as source, replacing(copy, private=True) as target:
        source.seek(start)
        while length > 0 and (part := source.read(min(CHUNK, length))):
            target.write(part)
            length -= len(part)
