"""Start runs in parallel, and read the memory of processes."""

from __future__ import annotations

import os
import platform
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

from benchmarks.rehearsal.kit_processes import told_of
from grandrounds.errors import GrandRoundsError


def run_all(commands: Iterable[Sequence[str]], workers: int, more: Callable[[], bool] = lambda: True) -> None:
    """Run commands in parallel; a failure does not stop the others. Before each ``more`` says whether it may start.

    Raises:
        GrandRoundsError: when all have ended, with the commands that failed.
    """

    def work(command: Sequence[str]) -> str:
        status = subprocess.call(command) if more() else 0
        return f"{' '.join(command)} (exit status {status})" if status else ""

    with ThreadPoolExecutor(workers) as pool:
        failed = [message for message in pool.map(work, commands) if message]
    if failed:
        raise GrandRoundsError(f"{len(failed)} runs failed: {'; '.join(failed)}")


def machine() -> dict[str, str | int | None]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {"processor": next(models, platform.processor()), "cores": os.cpu_count(), "system": platform.system()}


def cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    return sum(used.ru_utime + used.ru_stime for used in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))


@contextmanager
def sampled(sample: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call a function every so many seconds, in a thread."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(seconds):
            sample()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def resident_bytes(process: int) -> int:
    """Resident memory of a process; 0 if it has ended."""
    return told_of(process, lambda found: int(found.memory_info().rss), 0)


def proportional_bytes(process: int) -> int:
    """Resident memory of a process with its part of shared memory; 0 if it has ended."""
    return told_of(process, lambda found: int(found.memory_full_info().pss), 0)
