"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Callable, Iterator
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


def append_line(path: Path, content: Any) -> None:
    """Append one JSON object as a line; the folder is made when it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(content) + "\n")


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
