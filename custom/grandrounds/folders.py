"""Folders that are written whole or not at all, whatever interrupts the writing, and one command after the other."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grandrounds.errors import ConfigurationError

_PATIENCE_SECONDS, _POLL_SECONDS = 10.0, 0.02


@contextmanager
def temporary_sibling(folder: Path) -> Iterator[Path]:
    """A new empty folder beside ``folder``, removed when the block ends unless it was renamed.

    An error of the disk names what would have come to be in ``folder``.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(folder.with_name(f".{folder.name}.{uuid.uuid4().hex}"), folder) as temporary:
        yield temporary


def put_in_place(temporary: Path, folder: Path) -> None:
    """Rename ``temporary`` to ``folder``; what was there before is removed afterwards."""
    if not folder.exists():
        os.rename(temporary, folder)
        return
    with temporary_sibling(folder) as aside:
        old = aside / "old"
        try:
            os.rename(folder, old)
            os.rename(temporary, folder)
        except BaseException:  # an interruption, too, must not cost what was there
            if old.exists() and not folder.exists():
                os.rename(old, folder)
            raise


@contextmanager
def written_together(folder: Path, obsolete: Callable[[], Iterable[str]] = tuple) -> Iterator[Path]:
    """A new folder whose files take their places in ``folder`` together when the block ends without an error.

    After an error or an interruption ``folder`` is as it was; it is made when missing. Its other files stay, but for the
    ``obsolete`` ones of an earlier result, paths relative to it, which are asked for when no other command writes there.

    Raises:
        ConfigurationError: if another command goes on writing there.
    """
    missing = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _temporary(folder / f".{uuid.uuid4().hex}", folder) as temporary:
            new, old = temporary / "new", temporary / "old"
            with _named_as(new, folder):
                new.mkdir()
                yield new
            with in_turn(folder):
                _exchange(new, folder, old, obsolete())
    except BaseException:
        if missing:
            with suppress(OSError):  # another command may have written there meanwhile
                folder.rmdir()
        raise


@contextmanager
def in_turn(folder: Path, result: Path | None = None) -> Iterator[None]:
    """Change what is in a folder while no other command does; it waits for one that does.

    Args:
        folder: it.
        result: what is written there, as the error names it; the folder by default.

    Raises:
        ConfigurationError: if it waits for too long.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _locked(descriptor):
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"another command is writing in {result or folder}; wait for it, or choose another folder"
                )
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def file_names(folder: Path) -> list[str]:
    """The files below a folder, as relative paths with slashes, sorted; none when there is no folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@contextmanager
def _temporary(temporary: Path, folder: Path) -> Iterator[Path]:
    """A new folder that is removed in any case; errors name ``folder`` in its place."""
    try:
        with _named_as(temporary, folder):
            temporary.mkdir(0o755)
            yield temporary
    finally:
        try:
            shutil.rmtree(temporary, ignore_errors=True)
        except BaseException:  # interrupted: what the removal had begun is no use to anyone
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextmanager
def _named_as(temporary: Path, folder: Path) -> Iterator[None]:
    """Let an error of the disk name the path that was asked for, not the temporary one."""
    try:
        yield
    except OSError as error:
        for name in (error.filename2, error.filename):  # of a renaming, where it goes to
            if isinstance(name, str | os.PathLike) and Path(name).is_relative_to(temporary):
                place = folder / Path(name).relative_to(temporary)
                raise OSError(error.errno, error.strerror, str(place)) from error
        raise


def _exchange(new: Path, folder: Path, old: Path, obsolete: Iterable[str]) -> None:
    """Move the files of ``new`` to ``folder``, and those whose places they take to ``old``; all of them, or none."""
    names = sorted(file_names(new), key=lambda name: name.count("/"), reverse=True)
    folders = [folder / name for name in {str(Path(name).parent) for name in names} if not (folder / name).exists()]
    try:
        for name in dict.fromkeys((*names, *obsolete)):
            if (folder / name).is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(folder / name))
            if os.path.lexists(folder / name):
                (old / name).parent.mkdir(parents=True, exist_ok=True)
                os.rename(folder / name, old / name)
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.rename(new / name, folder / name)
    except BaseException:
        for name in names:
            if not (new / name).exists():
                (folder / name).unlink(missing_ok=True)
        for name in file_names(old):
            os.rename(old / name, folder / name)
        for made in sorted(folders, reverse=True):
            with suppress(OSError):
                made.rmdir()
        raise


def _locked(descriptor: int) -> bool:
    """Whether a folder is locked now; one of a file system without such locks counts as that."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
