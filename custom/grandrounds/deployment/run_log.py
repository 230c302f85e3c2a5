"""The log of a run in this process, or of a program such as FLARE's simulator."""

from __future__ import annotations

import logging
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOG_SECONDS_TO_STOP = 10.0


@contextmanager
def logging_to(path: Path, level: int = logging.INFO) -> Iterator[None]:
    """Write the log of the block, from ``level`` on, to a file and nowhere else; an existing file is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    root = logging.getLogger()
    before, level_before = list(root.handlers), root.level
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    root.handlers[:] = [handler]
    root.setLevel(level)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level_before)
        handler.close()


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
        # In a session of its own a terminal's Ctrl-C reaches it only from here.
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
            program.wait(LOG_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            continue
    if program.poll() is None:
        program.kill()
        program.wait()
