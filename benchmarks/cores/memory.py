"""Account for the memory of a worker that trains sites, and for what the bar of :mod:`benchmarks.cores.run` leaves to it.

A worker needs the tensors of a site's training, and what any process that trains has of its own: pages of Python's objects,
which counting references writes, torch's buffers and compiled kernels. The first is counted by torch's profiler, beside the
network and the states that a site has received. The second is measured in a process that is forked as a worker is and trains
the smallest network on the smallest images, less its tensors. What a worker has beyond the two sums is memory that the C
library keeps between blocks of different sizes.

With the memory ``one`` of a run with one worker and ``two`` of a run with two, both from ``result.json``, a worker has
``n = two - one`` and all else is ``b = 2 one - two``. At most 1.3 times ``one`` and a network for each worker is then
``n <= (0.3 b + 2 network) / 0.7``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from pathlib import Path
from typing import Any

from benchmarks.measure import MEBIBYTE, in_child, run, table

SIDE, SMALLEST = 64, ("compact", 32)
RECEIVED = 1  # the global model; the network and the peer, as received and with batch norms folded, are in the training
BAR, WORKERS = 1.3, 2
STEPS = 12  # batches of strong views differ in size, and torch compiles kernels for each


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All networks of the other benchmark."""
    sides = {"compact": 32} if options.quick else {"compact": SIDE, "efficientnet_lite0": SIDE}
    smallest = in_child("benchmarks.cores.memory.training", backbone=SMALLEST[0], side=SMALLEST[1])
    own = smallest["process"] - smallest["tensors"]
    found = {
        case["case"].partition(",")[0]: case["peak_mib"] for case in json.loads(options.result.read_text())["cases"]
    }
    cases = []
    for backbone, side in sides.items():
        used = in_child("benchmarks.cores.memory.training", backbone=backbone, side=side)
        one, two = found[backbone]["one"], found[backbone]["several"]
        bar = ((BAR - 1) * (2 * one - two) + WORKERS * used["network"]) / (2 - BAR)
        least = used["tensors"] + RECEIVED * used["network"] + own
        cases.append({"case": backbone, **used, "own": own, "least": least, "worker": two - one, "bar": bar})
    return {"smallest": smallest, "cases": [{name: _rounded(value) for name, value in case.items()} for case in cases]}


def training(backbone: str, side: int) -> dict[str, float]:
    """MiB of the network, of all tensors at the peak of a training, and of the memory that a fork has of its own."""
    from benchmarks.local_step.fedperl import FedPerlCase
    from grandrounds.federation.memory import keep_freed_memory, shared_with_forks

    case = FedPerlCase(backbone, side, steps=STEPS)
    keep_freed_memory()
    with shared_with_forks():
        found = {name: _in_fork(work, case) for name, work in (("tensors", _tensors), ("process", _process))}
    network = sum(value.nbytes for value in _network(case).state_dict().values()) / MEBIBYTE
    return {"network": network, **found}


def _in_fork(work: Any, case: Any) -> float:
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=lambda: theirs.send(work(case)))
    process.start()
    found: float = mine.recv()
    process.join()
    return found


def _network(case: Any) -> Any:
    import torch

    return case.round("ours", torch.float32, 1)[0]


def _tensors(case: Any) -> float:
    """The network, and the most that torch's allocations in the training come to at a time."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.set_num_threads(1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        case.prepare("ours")()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most / MEBIBYTE


def _process(case: Any) -> float:
    """Memory that this process shares with no other, at its peak."""
    import threading

    import psutil
    import torch

    torch.set_num_threads(1)
    this, ended, most = psutil.Process(), threading.Event(), [0.0]

    def watch() -> None:
        while not ended.wait(0.01):
            most[0] = max(most[0], this.memory_full_info().uss / MEBIBYTE)

    watcher = threading.Thread(target=watch)
    watcher.start()
    case.prepare("ours")()
    ended.set()
    watcher.join()
    return most[0]


def _rounded(value: Any) -> Any:
    return round(value, 1) if isinstance(value, float) else value


def tables(result: dict[str, Any]) -> str:
    columns = {
        "MiB, FedPerl": "case", "network": "network", "tensors of training": "tensors",
        "a process's own": "own", "least for a worker": "least", "the bar leaves": "bar",
        "a worker has": "worker",
    }  # fmt: skip
    return table(columns, result["cases"], 0)


if __name__ == "__main__":
    run(__file__, measured, tables, result={"type": Path, "default": Path(__file__).with_name("result.json")})
