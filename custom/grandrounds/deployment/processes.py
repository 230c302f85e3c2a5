"""Starting programs: FLARE's, with their output in a file and never outliving the command; and several runs at once."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from grandrounds.errors import GrandRoundsError

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


def run_all(commands: Iterable[Sequence[str]], workers: int) -> None:
    """Run commands, a few at a time, and go on with the others when one fails.

    Args:
        commands: each with its arguments; one is drawn when there is a worker for it.
        workers: how many at once.

    Raises:
        GrandRoundsError: when all have ended, naming those that failed.
    """
    waiting, lock = iter(commands), Lock()

    def work() -> list[str]:
        """Run what is waiting, one after the other, until nothing is; give what failed."""
        failed: list[str] = []
        while True:
            with lock:
                command = next(waiting, None)
            if command is None:
                return failed
            status = subprocess.call(list(command))
            if status:
                failed.append(f"{' '.join(command)} (exit status {status})")

    with ThreadPoolExecutor(workers) as pool:
        failed = [failure for found in pool.map(lambda _: work(), range(workers)) for failure in found]
    if failed:
        raise GrandRoundsError(f"{len(failed)} runs failed: {'; '.join(failed)}")


def machine() -> dict[str, str | int | None]:
    """What a figure was measured on: processor, cores and operating system."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {"processor": next(models, platform.processor()), "cores": os.cpu_count(), "system": platform.system()}
