"""JSON files: those that people write, read with the file's name in every error, and lists of events, one a line."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from grandrounds.errors import ConfigurationError


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
