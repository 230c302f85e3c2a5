"""Measure rounds under FLARE's simulator, with as many threads as sites and with fewer: time beyond training, and memory.

The time is that of a round less that of its training: the longest training, or with fewer threads than sites the sum of
all trainings divided by the threads. With fewer threads FLARE starts a program for every task of every site. A run takes
about three minutes of CPU time.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.measure import MEBIBYTE, run, spread, table
from benchmarks.parties import SMALL_TRAINING, one_set_of_images, site_names
from benchmarks.processes import proportional_bytes, sampled
from benchmarks.rehearsal.kit_processes import children_of
from grandrounds.deployment import simulate as engine
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.federation.server.record import read_events

# Sites, threads, network, rounds: resnet9 has 6.6 million parameters, the most of those that need no torchvision.
CASES = (
    (2, 2, "compact", 12),
    (4, 4, "compact", 12),
    (4, 4, "resnet9", 6),
    (10, 2, "compact", 3),
)
QUICK = ((2, 2, "compact", 4),)
SAMPLE_SECONDS = 1.0
BEYOND = {
    "s beyond training": "seconds_beyond_training.median",
    "least": "seconds_beyond_training.lowest",
    "most": "seconds_beyond_training.highest",
}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    return {"cases": [simulator_rounds(*case) for case in (QUICK if options.quick else CASES)]}


def simulator_rounds(sites: int, threads: int, backbone: str, rounds: int) -> dict[str, Any]:
    options = [*SMALL_TRAINING, f"controller.rounds={rounds}", f"problem.backbone={backbone}"]
    job = with_options(load_job("fedavg"), options)
    sizes = [0]

    def sample() -> None:
        sizes.append(sum(map(proportional_bytes, children_of(os.getpid(), recursive=True))))

    with tempfile.TemporaryDirectory() as folder:
        images, workspace = one_set_of_images(Path(folder) / "images"), Path(folder) / "run"
        os.environ["GRANDROUNDS_CACHE"] = str(Path(folder) / "cache")
        with sampled(sample, SAMPLE_SECONDS):
            engine.simulate(
                job, workspace, site_names(sites), images, engine.Execution("flare", threads), allow_overlap=True
            )
        events = read_events(workspace / "results")
    return {
        "sites": sites,
        "threads": threads,
        "backbone": backbone,
        "seconds_beyond_training": spread(beyond_training(events, sites, threads)),
        "mib_of_all_processes": round(max(sizes) / MEBIBYTE, 1),
    }


def beyond_training(events: list[dict[str, Any]], sites: int, threads: int) -> list[float]:
    """Time of each round but the first, less the training that cannot be done at the same time."""
    training: dict[int, list[float]] = defaultdict(list)
    whole: dict[int, float] = {}
    for event in events:
        if event["event"] == "answer" and event["task"] == "train":
            training[event["round"]].append(event["metrics"]["train_seconds"])
        if event["event"] == "round_end":
            whole[event["round"]] = event["round_seconds"]
    needed = {n: max(seconds) if threads >= sites else sum(seconds) / threads for n, seconds in training.items()}
    return [whole[number] - needed[number] for number in sorted(whole)[1:]]


def tables(result: dict[str, Any]) -> str:
    columns = {"sites": "sites", "threads": "threads", "network": "backbone"}
    return table({**columns, **BEYOND, "MiB of all": "mib_of_all_processes"}, result["cases"], 2)


if __name__ == "__main__":
    run(__file__, measured, tables)
