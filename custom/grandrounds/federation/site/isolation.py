"""Child processes that end with their parent, with all that they have started, and the words for how they have ended.

FLARE 2.9 fails the whole job when one site's job process dies, whatever the job's minimum number of sites. An image
library that segfaults, or the system taking a process that needs too much memory, would end the work of every hospital.
In a child process the same crash becomes an error of this task.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from grandrounds.errors import GrandRoundsError

SECONDS_TO_STOP = 5.0
SECONDS_TO_LOOK = 0.5
_WAITED = (signal.SIGCHLD, signal.SIGTERM)
_DEATH_SIGNAL, _SUBREAPER = 1, 36
"""Of Linux's ``prctl``."""


class WorkerLost(GrandRoundsError):
    """The child process ended without an answer: a signal, or an exit of its own."""


class WorkerStopped(GrandRoundsError):
    """The child process was stopped, because it had no more time."""


def become_child(parent: int) -> None:
    """Bind this process to its parent: both end together, and where memory runs out this one goes first.

    It gets a process group of its own, so that helpers that it starts die with it.
    """
    _go_first()
    threading.Thread(target=_die_with, args=(parent,), name="die-with-parent", daemon=True).start()


def become_kept_child(parent: int) -> tuple[int, ...]:
    """Go on in a fork of this process, which itself stays as its keeper, until the fork or the parent ends.

    The keeper then kills all that the fork has started and left, in whatever group or session, and ends as the fork has
    ended. Where the system is not Linux there is none, and this process is bound as by :func:`become_child`.

    Args:
        parent: of this process.

    Returns:
        The processes that the fork must not reach: its parent, and the keeper if there is one.
    """
    if sys.platform != "linux":
        become_child(parent)
        return (parent,)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    control, keeper = ctypes.CDLL(None).prctl, os.getpid()
    control(_SUBREAPER, 1)
    if fork := os.fork():
        _keep(fork, parent)
    control(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != keeper:  # it was killed before
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED)
    _go_first()
    return parent, keeper


def _go_first() -> None:
    os.setpgrp()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _keep(child: int, parent: int) -> NoReturn:
    """Wait for a child, and end as it has ended, after all that it has left; end it where the parent ends or asks for it."""
    ended = 0
    while ended != child:
        came = signal.sigtimedwait(_WAITED, SECONDS_TO_LOOK)
        if os.getppid() != parent or (came and came.si_signo == signal.SIGTERM):
            os.kill(child, signal.SIGKILL)
        while (reaped := os.waitpid(-1, os.WNOHANG))[0] not in (0, child):
            pass
        ended, status = reaped
    with suppress(ChildProcessError):
        while True:
            for left in _children():
                with suppress(ProcessLookupError):
                    os.kill(left, signal.SIGKILL)
            os.waitpid(-1, 0)
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _children() -> list[int]:
    """Processes whose parent is this one; those whose parents have ended become so."""
    mine = str(os.getpid())
    children = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            if Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()[1] == mine:
                children.append(int(entry))
    return children


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
