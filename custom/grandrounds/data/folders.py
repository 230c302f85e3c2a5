"""Writing whole folders so that nobody ever sees half of one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def temporary_sibling(folder: Path) -> Iterator[Path]:
    """A new empty folder beside ``folder``, removed when the block ends unless it was put in place."""
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
