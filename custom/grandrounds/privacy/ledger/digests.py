"""The digests of a data set's images, in a file that the ledger names by its SHA-256: it cannot be altered unseen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from grandrounds.errors import DataError
from grandrounds.files import write_bytes

DIGEST_FOLDER = "images"
"""Beside the ledger."""


def write_digests(folder: Path, digests: Iterable[str]) -> str:
    """Write digests beside a ledger in ``folder``; the SHA-256 of the file is returned, which is its name, too.

    Raises:
        DataError: if the file cannot be written.
    """
    content = (json.dumps(sorted(digests), indent=0) + "\n").encode()
    name = hashlib.sha256(content).hexdigest()
    path = folder / DIGEST_FOLDER / f"{name}.json"
    try:
        write_bytes(path, content, private=True)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}; nothing may be released") from error
    return name


def read_digests(folder: Path, name: str) -> frozenset[str]:
    """Read the digests that a line of the ledger names.

    Raises:
        DataError: if the file is missing or was altered.
    """
    path = folder / DIGEST_FOLDER / f"{name}.json"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror or error}; nothing may be released before the file is restored from a backup"
        ) from error
    if hashlib.sha256(content).hexdigest() != name:
        raise DataError(f"{path} was altered; nothing may be released before it is restored from a backup")
    return frozenset(json.loads(content))
