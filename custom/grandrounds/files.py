"""Atomic writing of files, lines that are appended, folders that one process holds, and names that can be printed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from grandrounds.errors import ConfigurationError, InUseError

FICLONE = 0x40049409
"""Linux's request to share the blocks of another file until one of the two changes (a reflink)."""
PRIVATE = 0o077
"""The umask of a kit's processes: decoded images and models are for its user alone, as under systemd."""
_LOCK = "lock"
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing, which name no file."""


def owners_alone(name: str, flags: int) -> int:
    """Python's ``opener`` of a new file that is for its owner alone."""
    return os.open(name, flags, 0o600)


@contextmanager
def replacing(path: Path, private: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path`` that takes its place when the block ends without an error.

    The bytes are on disk (``fsync``) before the name changes; after an error the old file is as it was, and an error of the
    disk names ``path``. A ``private`` file is for its owner alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not a file of tempfile's: those are for their owner alone, and what replaces a file should be as readable as it was.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb", opener=owners_alone if private else None) as stream:
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


def without_controls(text: str) -> str:
    r"""A text as a terminal can show it: what would control one is escaped, as what :func:`printable` escapes is.

    Example:
        >>> print(without_controls("ann\x1b[2J"))
        ann\x1b[2J
    """
    return _CONTROLS.sub(lambda sign: sign[0].encode("unicode_escape").decode(), printable(text))


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that must hold an object.

    Raises:
        ConfigurationError: naming the file, if it cannot be read, is not JSON (with the line), or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=unique_names)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path} is not valid JSON: line {error.lineno}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not valid JSON: no UTF-8 text ({error.reason})") from error
    except (ValueError, RecursionError) as error:  # a name twice, a number of thousands of digits, or lists in lists
        raise ConfigurationError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} must be a JSON object, got {type(content).__name__}")
    return content


def unique_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object in JSON; a ``ValueError`` if a name is there twice, of which Python would take the last."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError(f"{Counter(name for name, _ in pairs).most_common(1)[0][0][:40]!r} is there twice")
    return found


def require_object(
    content: Any, where: str, required: Collection[str] = (), optional: Collection[str] = ()
) -> Mapping[str, Any]:
    """Check an object in a JSON file: all required keys are there, and no unknown ones.

    Args:
        content: as it was read.
        where: the file and the entry in it.
        required: keys that must be there.
        optional: keys that may be there.

    Returns:
        The object.

    Raises:
        ConfigurationError: naming the entry and the key.

    Example:
        >>> require_object({"lines": 3}, "a.json", ["lines"])["lines"]
        3
    """
    known = {*required, *optional}
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"{where} must be an object with {', '.join(sorted(known))}, got {content!r}")
    for key in sorted(set(required) - content.keys()):
        raise ConfigurationError(f"{where}: {key!r} is missing")
    for key in sorted(content.keys() - known):
        raise ConfigurationError(f"{where}: unknown key {key!r}; expected {', '.join(sorted(known))}")
    return content


def append_line(path: Path, content: Any) -> None:
    """Append one JSON object as a line; half a line of a crash is ended first. The folder is made when it is missing."""
    line = (json.dumps(content) + "\n").encode()
    try:
        stream = path.open("a+b")
    except FileNotFoundError:  # only then: most lines follow others
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a+b")
    with stream:
        if stream.seek(0, os.SEEK_END):
            stream.seek(-1, os.SEEK_END)
            line = line if stream.read(1) == b"\n" else b"\n" + line
        stream.write(line)
