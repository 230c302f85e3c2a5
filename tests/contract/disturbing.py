"""Faults at a chosen operation on files, by the interpreter's own events, which come right before what they name.

Nothing is replaced by a double: whatever opens, makes, renames, copies or removes a file below a folder is counted, and one
of these operations is interrupted, fails, or has another command run before it.
"""

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CREATING = {"os.mkdir", "os.link", "os.symlink", "tempfile.mkdtemp"}
CHANGING = CREATING | {"os.rename", "os.remove", "os.rmdir", "os.chmod", "os.truncate"}
EVENTS = CHANGING | {"open", "os.listdir", "os.scandir", "shutil.rmtree", "shutil.copyfile"}


@dataclass
class Disturbance:
    """What happens at operations below a folder.

    Attributes:
        folder: below which operations count.
        react: is called with the number of an operation, from 0 on, its kind (``read``, ``change`` or ``create``) and path.
        seen: how many operations there were.
    """

    folder: Path
    react: Callable[[int, str, str], None] = lambda *_: None
    seen: int = 0
    process: int = field(default_factory=os.getpid)


_active: list[Disturbance] = []


def _listen(event: str, arguments: tuple) -> None:
    if not _active or event not in EVENTS:
        return
    now = _active[-1]
    if threading.current_thread() is not threading.main_thread() or os.getpid() != now.process:
        return
    path = _path(event, arguments)
    if path is None or not Path(path).is_relative_to(now.folder):
        return
    number, now.seen = now.seen, now.seen + 1
    now.react(number, _kind(event, arguments), path)


def _path(event: str, arguments: tuple) -> str | None:
    """The path of an operation; of one in an open folder with that folder."""
    path = arguments[0]
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    name = os.fsdecode(path)
    places = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 2}
    if event in places and (folder := arguments[places[event]]) not in (-1, None):
        name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
    return os.path.abspath(name)


def _kind(event: str, arguments: tuple) -> str:
    if event == "open":
        return "create" if isinstance(arguments[2], int) and arguments[2] & WRITING else "read"
    return "create" if event in CREATING else "change" if event in CHANGING else "read"


sys.addaudithook(_listen)


@contextmanager
def disturbed(folder: Path, react: Callable[[int, str, str], None] = lambda *_: None) -> Iterator[Disturbance]:
    """Count the operations of the block below a folder, and react to them."""
    found = Disturbance(folder.resolve(), react)
    _active.append(found)
    try:
        yield found
    finally:
        _active.remove(found)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A block in which nothing is counted."""
    before, _active[:] = list(_active), []
    try:
        yield
    finally:
        _active[:] = before


def interrupting(moment: int) -> Callable[[int, str, str], None]:
    """Press Ctrl-C right before an operation."""

    def react(number: int, kind: str, path: str) -> None:
        if number == moment:
            raise KeyboardInterrupt

    return react


def full(moment: int) -> Callable[[int, str, str], None]:
    """From an operation on nothing can be created any more."""

    def react(number: int, kind: str, path: str) -> None:
        if number >= moment and kind == "create":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    return react


def read_only(number: int, kind: str, path: str) -> None:
    """Nothing can be created or changed."""
    if kind != "read":
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


def meanwhile(moment: int, act: Callable[[], None]) -> Callable[[int, str, str], None]:
    """Do something else right before an operation, as if it were another process."""

    def react(number: int, kind: str, path: str) -> None:
        if number == moment:
            with undisturbed():
                act()

    return react
