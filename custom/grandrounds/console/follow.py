"""New events of a run's record, as they are appended to its file."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

FOLLOW_SECONDS = 0.1

Event = dict[str, Any]


class EventTail:
    """Reads the events that are appended to a file from now on, also if the file is replaced; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # The old file stays open, so that no new file can get its inode number and the two can be distinguished.
        self._stream: BinaryIO | None = None
        self._partial = b""
        self._open()
        if self._stream:
            self._stream.seek(0, os.SEEK_END)

    def read(self) -> list[Event]:
        """The complete events that were not returned before, in order."""
        events = self._new_events()
        if self._replaced():
            self.close()
            self._open()
            events += self._new_events()
        return events

    def close(self) -> None:
        """Close the file."""
        if self._stream:
            self._stream.close()
        self._stream, self._partial = None, b""

    def _open(self) -> None:
        if self._path.is_file():
            self._stream = self._path.open("rb")

    def _replaced(self) -> bool:
        try:
            now = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return self._stream is None or now.st_ino != os.fstat(self._stream.fileno()).st_ino

    def _new_events(self) -> list[Event]:
        if self._stream is None:
            return []
        *lines, self._partial = (self._partial + self._stream.read()).split(b"\n")
        return [event for event in map(_event, lines) if event]


def _event(line: bytes) -> Event:
    """The event of a line; empty for half a line of a crash."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return {}


@contextmanager
def following(path: Path, show: Callable[[Event], None]) -> Iterator[None]:
    """A block in which ``show`` is called with every new event of a file, in a thread of its own."""
    tail, done = EventTail(path), threading.Event()

    def follow() -> None:
        last = False
        while not last:
            last = done.wait(FOLLOW_SECONDS)
            for event in tail.read():
                show(event)

    thread = threading.Thread(target=follow, name="follow-events", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        tail.close()
