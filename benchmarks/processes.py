"""Start runs in parallel, find the processes of a kit, and read their memory."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import psutil

from grandrounds.deployment.kit.read import processes_of
from grandrounds.errors import GrandRoundsError

Found = TypeVar("Found")


def run_all(commands: Iterable[Sequence[str]], workers: int, seconds: float = math.inf) -> None:
    """Run commands in parallel; a failure does not stop the others, and none starts after so many seconds.

    Raises:
        GrandRoundsError: when all have ended, with the commands that failed.
    """
    end = time.monotonic() + seconds

    def work(command: Sequence[str]) -> str:
        status = subprocess.call(command) if time.monotonic() < end else 0
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


def children_of(process: int, recursive: bool = False) -> list[int]:
    """Ids of the running children of a process, ascending."""
    return sorted(_of(process, lambda parent: [child.pid for child in parent.children(recursive)], []))


def running_module(kit: Path, module: str) -> list[int]:
    """Ids of a kit's processes that run a certain module of FLARE, ascending."""
    return [process for process in processes_of(kit) if module in _arguments(process)]


def training_child(job: int) -> int | None:
    """The process in which a site's job trains (``executor.isolation=process``); None while there is none."""
    servers = [child for child in children_of(job) if "forkserver" in _arguments(child)]
    return next((child for server in servers for child in children_of(server)), None)


def resident_bytes(process: int) -> int:
    """Resident memory of a process; 0 if it has ended."""
    return _of(process, lambda found: int(found.memory_info().rss), 0)


def proportional_bytes(process: int) -> int:
    """Resident memory of a process with its part of shared memory; 0 if it has ended."""
    return _of(process, lambda found: int(found.memory_full_info().pss), 0)


def _arguments(process: int) -> str:
    return _of(process, lambda found: " ".join(found.cmdline()), "")


def _of(process: int, read: Callable[[psutil.Process], Found], ended: Found) -> Found:
    try:
        return read(psutil.Process(process))
    except psutil.Error:
        return ended
