"""What of this machine a process may use: cores and memory."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMORY = Path("/proc/meminfo")
CARDS = Path("/proc/driver/nvidia/gpus")


_worker = 0


def begin_worker(number: int) -> None:
    """Note which one of several processes that share this machine this one is, from 0."""
    global _worker
    _worker = number


def worker_number() -> int:
    """Which one of several processes that share this machine this one is; 0 where it is alone."""
    return _worker


def usable_cores() -> int:
    """Cores that this process may use: those of its affinity, within the limit of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _limit(CGROUP) or cores)


@cache
def _limit(group: Path) -> int | None:
    """Cores of the container; None without a limit, for which the quota is the word ``max``."""
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return max(1, int(quota) // int(period))
    return None


def available_memory() -> int | None:
    """Bytes that new processes may take without swapping, within the limit of the container; None if it is not known."""
    available = []
    with suppress(OSError, StopIteration):
        line = next(line for line in MEMORY.read_text().splitlines() if line.startswith("MemAvailable:"))
        available.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        statistics = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        available.append(max(0, limit - used + int(statistics.get("inactive_file", 0))))
    return min(available, default=None)


def graphics_cards() -> list[str]:
    """Models of NVIDIA's cards here, by their driver, without CUDA, which must not be started before a fork."""
    models = []
    for path in sorted(CARDS.glob("*/information")):
        with suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()
            models += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return models
