"""Writing files so that nobody ever sees half of one, and reading JSON files so that what is wrong is named."""

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


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that must hold an object.

    Raises:
        ConfigurationError: naming the file, if it cannot be read, is no JSON (with the line), or holds something else.
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
