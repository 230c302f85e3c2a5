"""What supervises a service: its log is bounded, its pulse is watched, and the service manager hears of it.

Messages to the service manager that has started this process are by the protocol of systemd's ``sd_notify``.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from grandrounds.files import replacing

CHUNK = 1 << 20
SOCKET, INTERVAL, WATCHED = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
VARIABLES = frozenset({SOCKET, INTERVAL, WATCHED})
"""Variables of the environment that are for the service's own process, not for its programs."""
SEND_SECONDS = 1.0
"""A service manager that takes no message must not hold up the service."""


def older(log: Path) -> Path:
    """Where the older part of a log is.

    Example:
        >>> older(Path("console.txt")).name
        'console.1.txt'
    """
    return log.with_suffix(f".1{log.suffix}")


def bound(log: Path, limit: int) -> bool:
    """Empty a log of more than ``limit`` bytes; its last bytes, at most as many, are the older part.

    Programs that have it open for appending go on at its new end. Lines that come between copy and cut are lost. Where
    there is no room for a copy, for example on a full disk, the log is emptied without one.

    Returns:
        Whether it was emptied.
    """
    try:
        size = log.stat().st_size
        if size <= limit:
            return False
        with suppress(OSError):
            _copy_end(log, older(log), size - limit, limit)
        os.truncate(log, 0)
    except OSError:  # it was removed, or cannot be written: later, then
        return False
    return True


def _copy_end(log: Path, copy: Path, start: int, length: int) -> None:
    with log.open("rb") as source, replacing(copy, private=True) as target:
        source.seek(start)
        while length > 0 and (part := source.read(min(CHUNK, length))):
            target.write(part)
            length -= len(part)


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


def notify(*states: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send states (``READY=1``, ``STATUS=...``) to the service manager; nothing happens where there is none.

    Returns:
        Whether it was sent; an error is no reason for a service to end.

    Example:
        >>> notify("READY=1", environment={})
        False
    """
    address = environment.get(SOCKET, "")
    if not address.startswith(("/", "@")):
        return False
    # A name that begins with @ has no file: the kernel writes a zero there.
    target = "\0" + address[1:] if address.startswith("@") else address
    message = "\n".join(state.replace("\n", " ") for state in states).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(SEND_SECONDS)
            sender.sendto(message, target)
    except OSError:
        return False
    return True


def seconds_between(environment: Mapping[str, str] = os.environ) -> float | None:
    """How often this process has to say that it lives: three times in the manager's interval; None if nobody waits for it.

    Example:
        >>> seconds_between({"WATCHDOG_USEC": "120000000"})
        40.0
        >>> seconds_between({}) is None
        True
    """
    try:
        whole = int(environment.get(INTERVAL, "")) / 1e6
        watched = int(environment.get(WATCHED, os.getpid()))
    except ValueError:
        return None
    return whole / 3 if whole > 0 and watched == os.getpid() else None


class Watchdog:
    """Says to the service manager that this process lives, as often as it wants to hear it."""

    def __init__(
        self, environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._environment, self._clock = environment, clock
        self._pause = seconds_between(environment)
        self._next = clock()

    def alive(self) -> None:
        """To be called often; most calls do nothing."""
        if self._pause is not None and self._clock() >= self._next:
            self._next = self._clock() + self._pause
            notify("WATCHDOG=1", environment=self._environment)
