"""Work in a child process, so that a crash in it costs one answer and not the job.

FLARE 2.9 fails the whole job when one site's job process dies, whatever the job's minimum number of sites. An image
library that segfaults, or the system taking a process that needs too much memory, would end the work of every hospital.
In a child process the same crash becomes an error of this task.

The child is forked by a server that has none of this process's threads (``forkserver``): a fork of the job's own process
would copy their locks. What goes in and comes out is pickled, between processes of one user. The child's log records are
handled here, and it may ask questions (:func:`ask_parent`).
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from grandrounds.errors import GrandRoundsError

Answer = TypeVar("Answer")
POLL_SECONDS = 0.2
SECONDS_TO_STOP = 5.0
LONGEST_FOLDER = 70
"""Bytes of the path of a folder for sockets, whose own paths have at most 107."""
PRELOADED = ("grandrounds.federation.site.worker", "grandrounds.federation.site.executor")
"""Imported by the server that forks, once, and not by every child: torch above all."""
VALUE, ERROR, LOG, QUESTION = "value", "error", "log", "question"


class WorkerLost(GrandRoundsError):
    """The child process ended without an answer: a signal, or an exit of its own."""


class WorkerStopped(GrandRoundsError):
    """The child process was stopped, because the task was aborted or had no more time."""


class _Line:
    """One end of the connection between a process and its child; messages have a kind and a value."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, kind: str, value: Any) -> None:
        """Send a message; threads may send at once."""
        # Not multiprocessing's own pickling: it would share a tensor's memory, which ends with the child.
        message = pickle.dumps((kind, value), pickle.HIGHEST_PROTOCOL)
        with self._sending:
            self._connection.send_bytes(message)

    def put_nowait(self, record: logging.LogRecord) -> None:
        """Send a log record, for the standard library's handler."""
        self.send(LOG, record)

    def receive(self) -> tuple[str, Any]:
        """Wait for a message: its kind and its value."""
        kind, value = pickle.loads(self._connection.recv_bytes())
        return kind, value


_parent: _Line | None = None
_starting = threading.Lock()


def run_isolated(
    function: Callable[..., Answer],
    *arguments: Any,
    aborted: Callable[[], bool] = lambda: False,
    seconds: float | None = None,
    reply: Callable[[Any], Any] | None = None,
) -> Answer:
    """Call a function in a child process and return its answer.

    Args:
        function: of a module's top level, so that the child can import it.
        arguments: that can be pickled.
        aborted: is called several times a second; when it is true, the child is killed.
        seconds: maximum time of the child; None for no limit.
        reply: answers what the child asks by :func:`ask_parent`.

    Returns:
        What the function returns.

    Raises:
        WorkerLost: if the child dies; the message names the signal, and for SIGKILL the likely reason.
        WorkerStopped: if it was aborted or took too long.
        Exception: whatever the function raises, with the child's traceback as a note.

    Example:
        >>> run_isolated(pow, 2, 10)
        1024
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    mine, childs = context.Pipe()
    work = pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL)
    # The server that forks was started with the environment of that time.
    surroundings = (dict(os.environ), logging.getLogger().level)
    child = context.Process(target=_work, args=(childs, work, *surroundings), daemon=True)
    try:
        with _room_for_a_socket():
            child.start()
    except (EOFError, OSError) as error:
        mine.close()
        raise WorkerLost(
            f"the child process ended before it had begun ({error}); is there too little memory?"
        ) from error
    finally:
        childs.close()  # or the end of the child would not end the connection
    del work
    try:
        answer: Answer = _await(child, mine, aborted, seconds, reply)
        return answer
    finally:
        mine.close()
        _stop(child)


@contextmanager
def _room_for_a_socket() -> Iterator[None]:
    """Have the forking server's socket in /tmp where $TMPDIR is too long for one, as Python itself does from 3.14 on."""
    with _starting:  # the folder is one for all threads
        before = tempfile.tempdir
        if len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER:
            tempfile.tempdir = "/tmp"
        try:
            yield
        finally:
            tempfile.tempdir = before


def ask_parent(question: Any) -> Any:
    """Ask the process that has started this child.

    Args:
        question: that can be pickled, as the reply and the errors must be.

    Returns:
        What ``reply`` of :func:`run_isolated` returns.

    Raises:
        RuntimeError: if this is not a child of :func:`run_isolated`.
        Exception: whatever ``reply`` raises.
    """
    if _parent is None:
        raise RuntimeError("only a child process of run_isolated has a parent to ask")
    _parent.send(QUESTION, question)
    kind, value = _parent.receive()
    if kind == ERROR:
        raise value
    return value


def _await(
    child: Any,
    connection: Connection,
    aborted: Callable[[], bool],
    seconds: float | None,
    reply: Callable[[Any], Any] | None,
) -> Any:
    started, line = time.monotonic(), _Line(connection)
    while True:
        if aborted():
            raise WorkerStopped("the task was aborted while it was worked on in a child process")
        if seconds is not None and time.monotonic() - started > seconds:
            raise WorkerStopped(f"the child process did not answer within {seconds:g} s")
        if not connection.poll(POLL_SECONDS):
            continue
        try:
            kind, value = line.receive()
            if kind == QUESTION:
                line.send(*_called(reply, value))
        except (EOFError, ConnectionError):
            child.join(SECONDS_TO_STOP)
            raise WorkerLost(described_end(child.exitcode)) from None
        if kind == VALUE:
            return value
        if kind == ERROR:
            raise value
        if kind == LOG:
            logging.getLogger(value.name).handle(value)


def _called(function: Callable[..., Any] | None, *arguments: Any) -> tuple[str, Any]:
    """What a function returns or raises, as a message."""
    if function is None:
        return ERROR, RuntimeError("the parent process does not answer questions of this child")
    try:
        return VALUE, function(*arguments)
    except Exception as error:
        return ERROR, _portable(error)


def _portable(error: Exception) -> Exception:
    """An error that can travel, with the place where it was raised as a note."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an error with arguments of its own
        return GrandRoundsError(str(error)) if isinstance(error, GrandRoundsError) else RuntimeError(repr(error))
    return error


def _work(connection: Connection, work: bytes, environment: dict[str, str], level: int) -> None:
    global _parent
    become_child()
    os.environ.clear()
    os.environ.update(environment)
    _parent = line = _Line(connection)
    handler = QueueHandler(line)  # type: ignore[arg-type]
    logging.basicConfig(format="%(message)s", handlers=[handler], level=level, force=True)
    try:
        function, arguments = pickle.loads(work)
    except Exception as error:
        line.send(ERROR, _portable(error))
        return
    del work
    line.send(*_called(function, *arguments))


def become_child() -> None:
    """Bind this process to its parent: both end together, and where memory runs out this one goes first.

    It gets a process group of its own, so that helpers that it starts die with it.
    """
    os.setpgrp()
    threading.Thread(target=_die_with_parent, name="die-with-parent", daemon=True).start()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _die_with_parent() -> None:
    """A job process that is killed cannot stop its child: the child has to see it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _stop(child: Any) -> None:
    child.join(SECONDS_TO_STOP if child.exitcode is None and not child.is_alive() else 0)
    if child.is_alive():
        kill_group(child.pid)
        child.join()
    child.close()


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
