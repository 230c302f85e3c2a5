"""Atomic writing of files and folders, and reading of JSON with errors that name the file and the key."""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from grandrounds.errors import ConfigurationError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path`` that takes its place when the block ends without an error.

    The bytes are on disk (``fsync``) before the name changes; after an error the old file is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not a file of tempfile's: those are for their owner alone, and what replaces a file should be as readable as it was.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Write ``content`` as indented JSON, atomically."""
    with replacing(path) as stream:
        stream.write((json.dumps(content, indent=2, default=default) + "\n").encode())


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


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that must hold an object.

    Raises:
        ConfigurationError: naming the file, if it cannot be read, is not JSON (with the line), or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path} is not valid JSON: line {error.lineno}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not valid JSON: no UTF-8 text ({error.reason})") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} must be a JSON object, got {type(content).__name__}")
    return content


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


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold a folder for this process, so that two jobs cannot write the same run.

    Raises:
        ConfigurationError: if another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"{folder}: another job is using this run; choose another run_name") from None
        yield


@contextmanager
def temporary_sibling(folder: Path) -> Iterator[Path]:
    """A new empty folder beside ``folder``, removed when the block ends unless it was renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    temporary.chmod(0o755)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def put_in_place(temporary: Path, folder: Path) -> None:
    """Rename ``temporary`` to ``folder``; what was there before is removed afterwards."""
    if not folder.exists():
        os.rename(temporary, folder)
        return
    with temporary_sibling(folder) as aside:
        os.rename(folder, aside / "old")
        try:
            os.rename(temporary, folder)
        except OSError:
            os.rename(aside / "old", folder)
            raise


def file_names(folder: Path) -> list[str]:
    """The files below a folder, as relative paths with slashes, sorted; none when there is no folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
