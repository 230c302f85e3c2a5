"""Starting FLARE's programs: their output goes to a file, and they never outlive the command that started them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

SECONDS_TO_STOP = 10.0


def run_logged(command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path) -> int:
    """Run a program to its end; when this process is interrupted, so is the program.

    Args:
        command: program and arguments.
        log: gets standard output and standard error; an older file is replaced.
        environment: all of the program's environment variables.
        folder: its working folder.

    Returns:
        Its exit status.
    """
    with log.open("wb") as stream:
        # A session of its own, or a terminal's Ctrl-C would reach it a second time, from here.
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
        )
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
            program.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            continue
    if program.poll() is None:
        program.kill()
        program.wait()
