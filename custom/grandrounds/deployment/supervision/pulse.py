"""Whether a program that runs still moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


class Pulse:
    """Watches a file that a living program touches again and again.

    Only changes count, by this process's own clock, so that a clock of the system that jumps is no sign of anything. A file
    that is not there yet says nothing.
    """

    def __init__(self, path: Path, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._patience, self._clock = path, patience, clock
        self._last: int | None = None
        self._seen = clock()

    def lost(self) -> bool:
        """Whether the file has been as it is for longer than the patience."""
        try:
            beat: int | None = self._path.stat().st_mtime_ns
        except OSError:
            beat = None
        if beat is None or beat != self._last:
            self._last, self._seen = beat, self._clock()
        return self._clock() - self._seen > self._patience
