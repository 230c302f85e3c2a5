"""Waiting: for a server that is away, and longer and longer between attempts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from grandrounds.errors import ConfigurationError, GrandRoundsError

Result = TypeVar("Result")


class Patience:
    """Retries an action while a server or a site is away.

    Args:
        report: called with a line for every failure that is waited for, once while it is the same.
        seconds: how long failures may last without a :meth:`renew` between them.
        poll_seconds: pause between two attempts.
    """

    def __init__(self, report: Callable[[str], None], seconds: float, poll_seconds: float) -> None:
        self._report, self._seconds, self._poll_seconds = report, seconds, poll_seconds
        self._last_message = ""
        self.renew()

    def renew(self) -> None:
        """Wait as long as at the beginning again: what was away has answered."""
        self._deadline, self._last_message = time.monotonic() + self._seconds, ""

    def result_of(self, act: Callable[[], Result]) -> Result:
        """The result of an action.

        Raises:
            ConfigurationError: at once; waiting changes nothing about it.
            GrandRoundsError: if the action still fails after the time.
        """
        while True:
            try:
                return act()
            except ConfigurationError:
                raise
            except GrandRoundsError as error:
                if time.monotonic() >= self._deadline:
                    raise
                if str(error) != self._last_message:
                    self._last_message = str(error)
                    self._report(f"waiting: {error}")
                time.sleep(self._poll_seconds)


def pause_after(failures: int, pauses: Sequence[float]) -> float:
    """Seconds before the next attempt; the last pause counts for all later failures.

    Example:
        >>> [pause_after(failures, (5.0, 15.0)) for failures in (1, 2, 3)]
        [5.0, 15.0, 15.0]
    """
    return pauses[min(failures, len(pauses)) - 1]
