"""Child processes that end with their parent, the words for how they have ended, and where a site's tasks are worked on.

FLARE 2.9 fails the whole job when one site's job process dies, whatever the job's minimum number of sites. An image
library that segfaults, or the system taking a process that needs too much memory, would end the work of every hospital.
In a child process the same crash becomes an error of this task.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from grandrounds.errors import ConfigurationError, GrandRoundsError

SECONDS_TO_STOP = 5.0
SECONDS_TO_LOOK = 0.5
ISOLATION_VARIABLE = "GRANDROUNDS_ISOLATION"


class Isolation(StrEnum):
    """Where a site works on tasks: in FLARE's process, or in a child with the walls that the system has, or with all."""

    NONE = "none"
    PROCESS = "process"
    REQUIRED = "required"

    @classmethod
    def chosen(cls, real: bool) -> Isolation:
        """What ``$GRANDROUNDS_ISOLATION`` says; without it ``process`` at a real site, and ``none`` in a simulation.

        Raises:
            ConfigurationError: if it says something else.
        """
        name = os.environ.get(ISOLATION_VARIABLE) or (cls.PROCESS if real else cls.NONE)
        if name not in set(cls):
            raise ConfigurationError(f"{ISOLATION_VARIABLE} must be {', '.join(cls)}, got {name!r}")
        return cls(name)


class WorkerLost(GrandRoundsError):
    """The child process ended without an answer: a signal, or an exit of its own."""


class WorkerStopped(GrandRoundsError):
    """The child process was stopped, because it had no more time."""


def become_child(parent: int) -> None:
    """Bind this process to its parent: both end together, and where memory runs out this one goes first.

    It gets a process group of its own, so that helpers that it starts die with it.
    """
    os.setpgrp()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    threading.Thread(target=_die_with, args=(parent,), name="die-with-parent", daemon=True).start()


def _die_with(parent: int) -> None:
    """A job process that is killed cannot stop its child: the child has to see it."""
    while os.getppid() == parent:
        time.sleep(SECONDS_TO_LOOK)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def kill_group(process: int) -> None:
    """Kill a child of :func:`become_child` with all that it has started."""
    try:
        os.killpg(process, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it has not made its group yet, or has just ended
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def described_end(status: int | None) -> str:
    """Why a child process has ended without an answer.

    Args:
        status: its exit status, negative for a signal; None if it is not known.
    """
    if status is None or status >= 0:
        return f"the child process ended without an answer (exit status {status}); see the site's log"
    name = signal.Signals(-status).name
    reason = {
        "SIGKILL": "; the system kills a process that needs more memory than there is: use smaller batches or images",
        "SIGSEGV": "; a library crashed: see the site's log, and look at the images by grandrounds doctor",
    }.get(name, "")
    return f"the child process was ended by {name}{reason}"
