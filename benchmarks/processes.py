"""Runs at once, which processes belong together, how much memory they hold, and the machine; needs ``/proc``."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from grandrounds.deployment.kit.read import PROCESSES, processes_of
from grandrounds.errors import GrandRoundsError


def run_all(commands: Iterable[Sequence[str]], workers: int) -> None:
    """Run commands, a few at a time; each is drawn when there is a worker for it, and the others go on when one fails.

    Raises:
        GrandRoundsError: when all have ended, naming those that failed.
    """
    waiting, lock, failed = iter(commands), Lock(), list[str]()

    def work(_: int) -> None:
        while True:
            with lock:
                command = next(waiting, None)
            if command is None:
                return
            if status := subprocess.call(list(command)):
                failed.append(f"{' '.join(command)} (exit status {status})")

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
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


def children_of(process: int) -> list[int]:
    """Ids of the processes that a process has started and that are still there, ascending."""
    found = []
    for entry in PROCESSES.iterdir():
        if entry.name.isdigit() and _parent(entry) == process:
            found.append(int(entry.name))
    return sorted(found)


def running_module(kit: Path, module: str) -> list[int]:
    """Ids of a kit's processes that run a certain module of FLARE, ascending."""
    return [process for process in processes_of(kit) if module in _read(PROCESSES / str(process) / "cmdline")]


def training_child(job: int) -> int | None:
    """The process in which a site's job trains (``executor.isolation=process``); None while there is none."""
    servers = [child for child in children_of(job) if "forkserver" in _read(PROCESSES / str(child) / "cmdline")]
    return next((child for server in servers for child in children_of(server)), None)


def resident_bytes(process: int) -> int:
    """Memory that a process holds; 0 if it is not there."""
    for line in _read(PROCESSES / str(process) / "status").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def _parent(entry: Path) -> int | None:
    # The program's name stands in brackets, and may have any characters.
    fields = _read(entry / "stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended in the meantime, or is somebody else's
        return ""
