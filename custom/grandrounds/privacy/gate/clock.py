"""When an answer leaves: at once, or at fixed times after its task came, so that it does not tell how long the work took."""

from __future__ import annotations

import time
from collections.abc import Callable

_LOOK = 0.5
"""Seconds between two looks at whether the job is aborted."""


class LeavingTime:
    """Begins when a task comes.

    Args:
        interval: seconds between the times at which its answer may leave; None for at any time.
    """

    def __init__(self, interval: float | None = None) -> None:
        self._interval = interval
        self._came = time.monotonic()

    def wait(self, aborted: Callable[[], bool]) -> None:
        """Return at the next time at which the answer may leave, or when the job is aborted."""
        if self._interval is None:
            return
        leaves = time.monotonic() + self._interval - (time.monotonic() - self._came) % self._interval
        while (left := leaves - time.monotonic()) > 0 and not aborted():
            time.sleep(min(left, _LOOK))
