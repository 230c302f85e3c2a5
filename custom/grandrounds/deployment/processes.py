"""Starting programs, running them to their end, and ending them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

LOG_SECONDS_TO_STOP = 10.0


def start_program(
    command: Sequence[str],
    output: BinaryIO,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    umask: int = -1,
) -> subprocess.Popen[bytes]:
    """Start a program without input, in a session of its own: a terminal's Ctrl-C does not reach it.

    Args:
        command: program and arguments.
        output: gets standard output and standard error.
        folder: its working folder.
        environment: all its environment variables; those of this process if None.
        umask: of its new files; that of this process if below zero.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=None if environment is None else dict(environment),
        cwd=folder,
        start_new_session=True,
        umask=umask,
    )


def run_logged(command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path) -> int:
    """Run a program to its end; an interruption of this process stops the program.

    Args:
        command: program and arguments.
        log: gets standard output and standard error; an existing file is replaced.
        environment: all environment variables of the program.
        folder: its working folder.

    Returns:
        Its exit status.
    """
    with log.open("wb") as stream:
        program = start_program(command, stream, folder, environment)
        try:
            return program.wait()
        finally:
            _stop(program)


def _stop(program: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        if program.poll() is not None:
            return
        program.send_signal(number)
        try:
            program.wait(LOG_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            continue
    if program.poll() is None:
        program.kill()
        program.wait()


def signal_processes(processes: list[int], number: signal.Signals) -> None:
    """Send a signal to processes; those that have ended are left out."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def await_end(running: Callable[[], bool], seconds: float, poll_seconds: float) -> None:
    """Wait until nothing runs any more, at most ``seconds``."""
    deadline = time.monotonic() + seconds
    while running() and time.monotonic() < deadline:
        time.sleep(poll_seconds)


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for a block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
