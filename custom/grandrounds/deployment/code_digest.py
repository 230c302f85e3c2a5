"""A digest of this package's code: the same for a wheel, for its installation and for a checkout."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import grandrounds

PACKAGE = Path(grandrounds.__file__).parent
UNREVIEWED = ("__pycache__", ".pyc")


def installed_digest(package: Path = PACKAGE) -> str:
    """SHA-256 over the names and contents of all files of the installed package; caches of the interpreter do not count.

    Example:
        >>> len(installed_digest())
        64
    """
    files = (path for path in package.rglob("*") if path.is_file())
    return files_digest((f"{package.name}/{path.relative_to(package).as_posix()}", path.read_bytes()) for path in files)


def files_digest(files: Iterable[tuple[str, bytes]]) -> str:
    """SHA-256 over names and contents, in any order; caches of the interpreter do not count."""
    lines = [f"{name}\0{hashlib.sha256(content).hexdigest()}\n" for name, content in files if not _cached(name)]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _cached(name: str) -> bool:
    return any(part in name for part in UNREVIEWED)
