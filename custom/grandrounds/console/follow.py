"""New events of a run's record, as they are appended to its file."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
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


class Follower:
    """A context in which ``show`` is called with every new event of a file, in a thread of its own."""

    def __init__(self, path: Path, show: Callable[[Event], None]) -> None:
        self._tail = EventTail(path)
        self._show = show
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follow-events", daemon=True)

    def __enter__(self) -> Follower:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Show the remaining events, and stop."""
        self._done.set()
        self._thread.join()
        self._tail.close()

    def _follow(self) -> None:
        last = False
        while not last:
            last = self._done.wait(FOLLOW_SECONDS)
            for event in self._tail.read():
                self._show(event)
