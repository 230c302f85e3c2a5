"""Messages to the service manager that has started this process, by the protocol of systemd's ``sd_notify``."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

SOCKET, INTERVAL, WATCHED = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
VARIABLES = frozenset({SOCKET, INTERVAL, WATCHED})
"""Variables of the environment that are for the service's own process, not for its programs."""
SEND_SECONDS = 1.0
"""A service manager that takes no message must not hold up the service."""


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
