"""Training in a child process, so that a crash in it costs one answer and not the job.

FLARE 2.9 fails the whole job when one site's job process dies, whatever the job's least number of sites is. An image
library that segfaults, or the system taking a process that needs too much memory, would end the work of every hospital.
In a child process the same crash becomes an error of this task.

The child is forked by a server that has imported nothing of FLARE (``forkserver``): a fork of the job's own process would
copy its threads' locks. What goes in and comes out is pickled by multiprocessing, between processes of one user.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from grandrounds.errors import GrandRoundsError

Answer = TypeVar("Answer")
POLL_SECONDS = 0.2
SECONDS_TO_STOP = 5.0


class WorkerLost(GrandRoundsError):
    """The child process ended without an answer: a signal, or an exit of its own."""


class WorkerStopped(GrandRoundsError):
    """The child process was stopped, because the task was aborted or had no more time."""


def run_isolated(
    function: Callable[..., Answer],
    *arguments: Any,
    aborted: Callable[[], bool] = lambda: False,
    seconds: float | None = None,
) -> Answer:
    """Call a function in a child process and return its answer.

    Args:
        function: of a module's top level, so that the child can import it.
        arguments: that can be pickled.
        aborted: is asked several times a second; when it says so, the child is killed.
        seconds: the most that the child may take; None for no limit.

    Returns:
        What the function returns.

    Raises:
        WorkerLost: if the child dies; the message names the signal, and for SIGKILL the likely reason.
        WorkerStopped: if it was aborted or took too long.
        Exception: whatever the function raises, as it raised it.

    Example:
        >>> run_isolated(pow, 2, 10)
        1024
    """
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(sender, function, arguments), daemon=True)
    child.start()
    sender.close()  # or the end of the child would not end the pipe
    try:
        answer: Answer = _await(child, receiver, aborted, seconds)
        return answer
    finally:
        receiver.close()
        _stop(child)


def _await(child: Any, receiver: Connection, aborted: Callable[[], bool], seconds: float | None) -> Any:
    started = time.monotonic()
    while not receiver.poll(POLL_SECONDS):
        if aborted():
            raise WorkerStopped("the task was aborted while it was worked on in a child process")
        if seconds is not None and time.monotonic() - started > seconds:
            raise WorkerStopped(f"the child process did not answer within {seconds:g} s")
    try:
        worked, value = receiver.recv()
    except EOFError:
        child.join(SECONDS_TO_STOP)
        raise WorkerLost(_death(child.exitcode)) from None
    if not worked:
        raise value
    return value


def _work(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """In the child: a group of its own, so that helpers that it starts die with it."""
    os.setpgrp()
    threading.Thread(target=_die_with_parent, name="die-with-parent", daemon=True).start()
    try:
        message = (True, function(*arguments))
    except Exception as error:
        message = (False, error)
    sender.send(message)
    sender.close()


def _die_with_parent() -> None:
    """A job process that is killed cannot stop its child: the child has to see it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _stop(child: Any) -> None:
    child.join(SECONDS_TO_STOP if child.exitcode is None and not child.is_alive() else 0)
    if child.is_alive():
        _kill_group(child.pid)
        child.join()
    child.close()


def _kill_group(process: int) -> None:
    try:
        os.killpg(process, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it has not made its group yet
        os.kill(process, signal.SIGKILL)


def _death(status: int | None) -> str:
    if status is None or status >= 0:
        return f"the child process ended without an answer (exit status {status}); see the site's log"
    name = signal.Signals(-status).name
    reason = {
        "SIGKILL": "; the system kills a process that needs more memory than there is: use smaller batches or images",
        "SIGSEGV": "; a library crashed: see the site's log, and look at the images by grandrounds doctor",
    }.get(name, "")
    return f"the child process was ended by {name}{reason}"
