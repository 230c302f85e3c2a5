"""Atomic writing of files and folders, and reading of JSON with errors that name the file and the key."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from grandrounds.errors import ConfigurationError

_LOCK = "lock"


@contextmanager
def replacing(path: Path, private: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path`` that takes its place when the block ends without an error.

    The bytes are on disk (``fsync``) before the name changes; after an error the old file is as it was. A ``private`` file
    is for its owner alone.
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
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any, default: Callable[[Any], Any] | None = None, private: bool = False) -> None:
    """Write ``content`` as indented JSON, atomically; a ``private`` file is for its owner alone."""
    with replacing(path, private) as stream:
        stream.write((json.dumps(content, indent=2, default=default) + "\n").encode())


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


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold a folder for this process, so that two jobs cannot write the same run.

    Raises:
        ConfigurationError: if another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as stream:
        for patience in (0.05, 0.2, 0.0):  # whoever looks by is_held holds it for a moment
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not patience:
                    raise ConfigurationError(
                        f"{folder}: another job is using this run; choose another run_name"
                    ) from None
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
