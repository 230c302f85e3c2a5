"""Is the installed package the one that was reviewed? A digest over its files, the same for a wheel and an installation."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable
from pathlib import Path

from grandrounds.deployment.jobs import PACKAGE
from grandrounds.errors import ConfigurationError

UNREVIEWED = ("__pycache__", ".pyc")


def installed_digest(package: Path = PACKAGE) -> str:
    """SHA-256 over the names and contents of all files of the installed package; caches of the interpreter do not count.

    Example:
        >>> len(installed_digest())
        64
    """
    files = (path for path in package.rglob("*") if path.is_file())
    return _digest((f"{package.name}/{path.relative_to(package).as_posix()}", path.read_bytes()) for path in files)


def wheel_digest(wheel: Path, package: str = PACKAGE.name) -> str:
    """The digest that an installation of this wheel has.

    Raises:
        ConfigurationError: if the file is no wheel, or one of another package.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith(f"{package}/") and not name.endswith("/")]
            digest = _digest((name, archive.read(name)) for name in names)
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"{wheel} cannot be read as a wheel: {error}") from error
    if not names:
        raise ConfigurationError(f"{wheel} is no wheel of {package}: there is no folder {package} in it")
    return digest


def file_digest(path: Path) -> str:
    """SHA-256 of a file, as ``sha256sum`` prints it."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest(files: Iterable[tuple[str, bytes]]) -> str:
    lines = [f"{name}\0{hashlib.sha256(content).hexdigest()}\n" for name, content in files if not _cached(name)]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _cached(name: str) -> bool:
    return any(part in name for part in UNREVIEWED)
