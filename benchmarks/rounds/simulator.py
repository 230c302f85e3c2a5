"""Rounds under FLARE's simulator, with as many threads as sites and with fewer: time beyond training, and memory.

The time of a round less that of the training in it: the longest of a round, or with fewer threads than sites the sum of
all over the threads. With fewer threads every task of every site has a process of its own: FLARE starts a program,
``simulate`` forks a process that has imported everything. About three minutes of CPU time.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.measure import MEBIBYTE, run, spread, table
from benchmarks.parties import QUIET, one_set_of_images, site_names
from benchmarks.processes import children_of
from grandrounds.deployment import simulate as engine
from grandrounds.deployment.jobs import load_job, with_options
from grandrounds.federation.server.record import read_events

FORKED, STARTED = "forked", "started"
# Sites, threads, network, rounds: resnet9 has 6.6 million parameters, the most of those that need no torchvision.
CASES = (
    (2, 2, "compact", 12, None),
    (4, 4, "compact", 12, None),
    (4, 4, "resnet9", 6, None),
    (10, 2, "compact", 4, FORKED),
    (10, 2, "compact", 3, STARTED),
)
QUICK = ((2, 2, "compact", 4, None),)
SAMPLE_SECONDS = 1.0
BEYOND = {
    "s beyond training": "seconds_beyond_training.median",
    "least": "seconds_beyond_training.lowest",
    "most": "seconds_beyond_training.highest",
}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All cases."""
    return {"cases": [simulator_rounds(*case) for case in (QUICK if options.quick else CASES)]}


def simulator_rounds(sites: int, threads: int, backbone: str, rounds: int, workers: str | None) -> dict[str, Any]:
    """Seconds of each round but the first less its training, and memory of all processes."""
    options = [f"controller.rounds={rounds}", f"problem.backbone={backbone}", *QUIET]
    job = with_options(load_job("fedavg"), [*options, "executor.steps=2", "executor.batch_size=4"])
    program = engine.SIMULATOR if workers == STARTED else engine.FORKED_SIMULATOR
    with tempfile.TemporaryDirectory() as folder, patch.object(engine, "FORKED_SIMULATOR", program):
        images = one_set_of_images(Path(folder) / "images")
        os.environ["GRANDROUNDS_CACHE"] = str(Path(folder) / "cache")
        workspace = Path(folder) / "run"
        sizes = [0]
        with Sampler(lambda: sizes.append(sum(map(proportional_bytes, _descendants(os.getpid()))))):
            engine.simulate(job, workspace, site_names(sites), images, engine="flare", threads=threads)
        events = read_events(workspace / "results")
    return {
        "sites": sites,
        "threads": threads,
        "backbone": backbone,
        "processes": workers,
        "seconds_beyond_training": spread(beyond_training(events, sites, threads)),
        "mib_of_all_processes": round(max(sizes) / MEBIBYTE, 1),
    }


def beyond_training(events: list[dict[str, Any]], sites: int, threads: int) -> list[float]:
    """Each round's time but the first one's, less the training that cannot be done at the same time."""
    training: dict[int, list[float]] = defaultdict(list)
    whole: dict[int, float] = {}
    for event in events:
        if event["event"] == "answer" and event["task"] == "train":
            training[event["round"]].append(event["metrics"]["train_seconds"])
        if event["event"] == "round_end":
            whole[event["round"]] = event["round_seconds"]
    needed = {n: max(seconds) if threads >= sites else sum(seconds) / threads for n, seconds in training.items()}
    return [whole[number] - needed[number] for number in sorted(whole)[1:]]


class Sampler:
    """Calls ``sample`` about once a second while a run goes on."""

    def __init__(self, sample: Callable[[], None]) -> None:
        self._sample = sample
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self._sample()


def _descendants(process: int) -> list[int]:
    children = children_of(process)
    return [*children, *(below for child in children for below in _descendants(child))]


def proportional_bytes(process: int) -> int:
    """Resident memory of a process, shared memory in proportion; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def tables(result: dict[str, Any]) -> str:
    columns = {"sites": "sites", "threads": "threads", "a task's process": "processes", "network": "backbone"}
    return table({**columns, **BEYOND, "MiB of all": "mib_of_all_processes"}, result["cases"], 2)


if __name__ == "__main__":
    run(__file__, measured, tables)
