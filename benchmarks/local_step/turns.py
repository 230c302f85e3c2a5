"""Loops in turn, each in a process of its own: what else the machine does meets all, and memory is that of one loop.

The processes are forked, so that they begin with what has been imported and made. Those of the package keep freed memory,
as a site's do; those of plain loops leave it to the system.
"""

from __future__ import annotations

import ctypes
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.local_step.case import Case
from benchmarks.measure import Cost, clocked, peak_mib, resident_mib
from grandrounds.federation.site.worker import keep_freed_memory


@dataclass(frozen=True)
class Measured:
    """What a loop took.

    Attributes:
        first: cost of the first round, which warms up.
        costs: of the rounds that count.
        mib: greatest resident memory of the first round beyond what the process had before it.
    """

    first: Cost
    costs: list[Cost]
    mib: float


def in_turn(case: Case, repeats: int, between: Callable[[], None]) -> dict[str, Measured]:
    """Measure all loops of a case."""
    forking = multiprocessing.get_context("fork")
    channels, processes = {}, []
    for loop in case.loops:
        channels[loop], theirs = forking.Pipe()
        processes.append(forking.Process(target=_serve, args=(theirs, case, loop), daemon=True))
        processes[-1].start()
        theirs.close()
    first = {loop: _asked(channel) for loop, channel in channels.items()}
    costs: dict[str, list[Cost]] = {loop: [] for loop in channels}
    for _ in range(repeats):
        for loop, channel in channels.items():
            costs[loop].append(_asked(channel)[0])
        between()
    for channel, process in zip(channels.values(), processes, strict=True):
        channel.send(False)
        process.join()
    return {loop: Measured(first[loop][0], costs[loop], first[loop][1]) for loop in channels}


def _asked(channel: Connection) -> tuple[Cost, float]:
    channel.send(True)
    cost, mib = channel.recv()
    return cost, mib


def _serve(channel: Connection, case: Case, loop: str) -> None:
    # What the parent has freed would be used again, and not be seen.
    ctypes.CDLL(None).malloc_trim(0)
    if loop.startswith("ours"):
        keep_freed_memory()
    while channel.recv():
        work = case.prepare(loop)
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        before = resident_mib()
        cost, _ = clocked(work)
        channel.send((cost, peak_mib() - before))
