"""What the memory of a worker consists of when it is largest, beside what all processes share.

A simulation runs with two workers. Each reads its own page tables some fifty times a second, and takes stock when it has
more writable pages of its own than ever before. *Copied* are pages at places that were in use before the fork and that no
other process has any more: CPython writes to objects when it only reads them. *Messages* are received models, and an
answer while it is sent. Of the pages that the C heap has got since the fork some are free: it is compared with the most
bytes in use, which may have been missed between two looks. Linux and the GNU C library only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cores.run import CASES, ROUNDS, SITES, case
from benchmarks.measure import MEBIBYTE, in_child, run, table

WORKERS = 2
WATCH_SECONDS = 0.01
PAGE = os.sysconf("SC_PAGE_SIZE")
PRESENT, EXCLUSIVE = np.uint64(1 << 63), np.uint64(1 << 56)
HEAP_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip
HEAP, MESSAGES = "[heap]", "memfd"


class HeapInfo(ctypes.Structure):
    """The GNU C library's ``struct mallinfo2``."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in HEAP_FIELDS)


def bytes_in_use() -> int:
    """Bytes of the C heap in use, without blocks that have mappings of their own."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = HeapInfo
    return int(library.mallinfo2().uordblks)


def pages(flags: np.uint64) -> Iterator[tuple[str, np.ndarray]]:
    """Name and numbers of pages of each writable mapping of this process that have all flags."""
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", buffering=0) as entries:
        for line in maps:
            fields = line.split(maxsplit=5)
            if "w" not in fields[1]:
                continue
            first, end = (int(address, 16) // PAGE for address in fields[0].split("-"))
            entries.seek(8 * first)
            found = np.frombuffer(entries.read(8 * (end - first)), dtype=np.uint64)
            yield fields[5].strip() if len(fields) > 5 else "", first + np.flatnonzero(found & flags == flags)


class Watch:
    """Watches this process from now on, which was forked with these pages, ascending, and bytes of its heap in use."""

    def __init__(self, before: np.ndarray, in_use: int, out: Path) -> None:
        self._before, self._in_use, self._out, self._most, self._most_used = before, in_use, out, 0, 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_SECONDS)
            self._take()

    def _take(self) -> None:
        found = dict.fromkeys(("copied", "messages", "heap", "other"), 0)
        self._most_used = max(self._most_used, bytes_in_use() - self._in_use)
        for name, numbers in pages(PRESENT | EXCLUSIVE):
            places = np.searchsorted(self._before, numbers).clip(max=len(self._before) - 1)
            old = int((self._before[places] == numbers).sum())
            kind = "heap" if name == HEAP else "messages" if MESSAGES in name else "other"
            found["copied"] += old * PAGE
            found[kind] += (len(numbers) - old) * PAGE
        total = sum(found.values())
        if total > self._most:
            self._most = total
            new = self._out.with_suffix(".new")  # the worker may be killed while it writes
            new.write_text(json.dumps({**found, "used": self._most_used, "total": total}))
            new.replace(self._out)


def watched(**arguments: Any) -> list[dict[str, int]]:
    """Run a simulation; what each worker had at its largest, in bytes."""
    from grandrounds.federation import workers

    folder, fork, serve = tempfile.TemporaryDirectory(), workers.Workers.__init__, workers._serve
    before: list[Any] = []

    def forking(*given: Any) -> None:
        before[:] = np.sort(np.concatenate([numbers for _, numbers in pages(PRESENT)])), bytes_in_use()
        fork(*given)

    def served(*given: Any) -> None:
        Watch(before[0], before[1], Path(folder.name) / f"{os.getpid()}.json")
        serve(*given)

    workers.Workers.__init__, workers._serve = forking, served
    with folder:
        case(workers=WORKERS, **arguments)
        return [json.loads(path.read_text()) for path in sorted(Path(folder.name).glob("*.json"))]


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All networks, each in a process of its own."""
    from grandrounds.models.registry import build_model
    from grandrounds.protocol.problem import ModelSpec

    sizes = {"sites": 3, "rounds": 2} if options.quick else {"sites": SITES, "rounds": ROUNDS}
    found = []
    for backbone, side, steps in [("compact", 32, 2)] if options.quick else CASES:
        network = build_model(ModelSpec(backbone, 3, 8), 0)
        size = sum(value.nbytes for value in network.state_dict().values())
        arguments = {"backbone": backbone, "side": side, "steps": steps, **sizes}
        taken = in_child("benchmarks.cores.memory.watched", **arguments)
        found.append({"case": f"{backbone}, {side} px", "network": size, "workers": taken})
    return {"cases": found}


def tables(result: dict[str, Any]) -> str:
    rows = []
    for one in result["cases"]:
        means = {name: np.mean([worker[name] for worker in one["workers"]]) for name in one["workers"][0]}
        sizes = {**means, "model": 4 * one["network"]}  # weights, gradients, and two moments of Adam
        rows.append({"case": one["case"], **{name: f"{size / MEBIBYTE:.0f}" for name, size in sizes.items()}})
    columns = {
        "MiB of a worker's own": "case", "sum": "total", "new pages of the C heap": "heap",
        "most of the heap in use": "used", "of it weights, gradients, optimizer": "model", "messages": "messages",
        "copied": "copied", "other": "other",
    }  # fmt: skip
    return table(columns, rows, 0)


if __name__ == "__main__":
    run(__file__, measured, tables)
