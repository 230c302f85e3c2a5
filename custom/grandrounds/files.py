"""Atomic writing of files, lines that are appended, folders that one process holds, and names that can be printed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from grandrounds.errors import InUseError

FICLONE = 0x40049409
"""Linux's request to share the blocks of another file until one of the two changes (a reflink)."""
_LOCK = "lock"
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing, which name no file."""


@contextmanager
def replacing(path: Path, private: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path`` that takes its place when the block ends without an error.

    The bytes are on disk (``fsync``) before the name changes; after an error the old file is as it was, and an error of the
    disk names ``path``. A ``private`` file is for its owner alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not a file of tempfile's: those are for their owner alone, and what replaces a file should be as readable as it was.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    mode = 0o600 if private else 0o666
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and _is_of(error, temporary):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_bytes(path: Path, content: bytes | memoryview, private: bool = False) -> None:
    """Write bytes, atomically; a ``private`` file is for its owner alone."""
    with replacing(path, private) as stream:
        stream.write(content)


def write_json(path: Path, content: Any, default: Callable[[Any], Any] | None = None, private: bool = False) -> None:
    """Write ``content`` as indented JSON, atomically; a ``private`` file is for its owner alone."""
    write_bytes(path, (json.dumps(content, indent=2, default=default) + "\n").encode(), private)


def copy_file(source: Path, target: Path, may_link: bool = False) -> None:
    """Copy a file, atomically; the copy is as private as its source, and shares its blocks where the file system can.

    Where it cannot, ``may_link`` lets the copy be a second name of the same file: for files that are replaced and never
    changed, in folders that are kept and removed together.
    """
    if may_link and target.exists() and target.samefile(source):
        return
    with source.open("rb") as stream, replacing(target, not os.fstat(stream.fileno()).st_mode & 0o077) as copy:
        with suppress(OSError):
            fcntl.ioctl(copy.fileno(), FICLONE, stream.fileno())
            return
        with suppress(OSError):
            if may_link:
                os.link(source, f"{copy.name}.link")
                os.replace(f"{copy.name}.link", copy.name)
                return
        shutil.copyfileobj(stream, copy)


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, as ``sha256sum`` prints it."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def exclusive(folder: Path, refusal: str = "another job is using this run; choose another run_name") -> Iterator[None]:
    """Hold a folder for this process, so that two jobs cannot write the same run.

    Raises:
        InUseError: if another process holds it; ``refusal`` is what it says, and what to do.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as stream:
        for patience in (0.05, 0.2, 0.0):  # is_held holds it for a moment
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not patience:
                    raise InUseError(f"{folder}: {refusal}") from None
                time.sleep(patience)
        yield


def is_held(folder: Path) -> bool | None:
    """Whether a process holds a folder, see :func:`exclusive`; None if that cannot be known here, as of a copy."""
    try:
        with (folder / _LOCK).open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _is_of(error: OSError, temporary: Path) -> bool:
    """Whether an error is of writing a temporary file, whose name means nothing to anyone."""
    if error.filename is None:
        return error.errno in _OF_DISKS
    return bool(os.fspath(error.filename) == str(temporary))


def printable(name: str) -> str:
    r"""A name as it can be printed: bytes that are not UTF-8 are escaped.

    Example:
        >>> print(printable("M\udcfcller.jpg"))
        M\xfcller.jpg
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
