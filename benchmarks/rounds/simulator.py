"""Rounds under ``nvflare simulator``, with as many threads as sites and with fewer: time beyond training, and memory.

The time of a round less that of the training in it: the longest of a round, or with fewer threads than sites the sum of all
over the threads. With fewer threads FLARE starts a process for every task, which takes processor time: seconds are those of
the machine with whatever else it does, whose load is in the result. About three minutes of processor time, longer by the
clock.

    python -m benchmarks.rounds.simulator
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.measure import MEBIBYTE, arguments_of, report, spread
from benchmarks.parties import QUIET, one_set_of_images, site_names

from grandrounds.deployment.jobs import load_job, with_options
from grandrounds.deployment.process_tree import children_of, resident_bytes
from grandrounds.deployment.simulate import simulate
from grandrounds.evaluation.tables import markdown_table
from grandrounds.federation.record import read_events

# Sites, threads, network, rounds: resnet9 has 6.6 million parameters, the most of those that need no torchvision.
CASES = ((2, 2, "compact", 12), (4, 4, "compact", 12), (4, 4, "resnet9", 6), (10, 2, "compact", 3))
QUICK = ((2, 2, "compact", 4),)
RESULT = Path(__file__).with_name("simulator.json")
SAMPLE_SECONDS = 0.5
SITE = "simulator_worker"


def main() -> None:
    """Measure all cases, print a table and write ``simulator.json``."""
    options = arguments_of(__doc__, RESULT)
    load = os.getloadavg()[0]
    result = {"cases": [simulator_rounds(*case) for case in (QUICK if options.quick else CASES)]}
    print(table(result))
    report(result, options, load)


def simulator_rounds(sites: int, threads: int, backbone: str, rounds: int) -> dict[str, Any]:
    """Seconds of each round but the first less its training, and resident memory of the processes by their kind."""
    options = [f"controller.rounds={rounds}", f"problem.backbone={backbone}", *QUIET]
    job = with_options(load_job("fedavg"), [*options, "executor.steps=2", "executor.batch_size=4"])
    with tempfile.TemporaryDirectory() as folder:
        images = one_set_of_images(Path(folder) / "images")
        os.environ["GRANDROUNDS_CACHE"] = str(Path(folder) / "cache")
        workspace = Path(folder) / "run"
        with Memory() as memory:
            simulate(job, workspace, site_names(sites), images, engine="flare", threads=threads)
        events = read_events(workspace / "results")
    return {
        "sites": sites,
        "threads": threads,
        "backbone": backbone,
        "seconds_beyond_training": spread(beyond_training(events, sites, threads)),
        "resident_mib": memory.summary(),
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


class Memory:
    """Samples the processes below this one while a run goes on."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.largest = {"site": 0, "all": 0}

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def summary(self) -> dict[str, float]:
        """The largest process of a site and the largest sum of all processes, in mebibytes."""
        return {f"largest_{kind}": round(size / MEBIBYTE, 1) for kind, size in self.largest.items()}

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            sizes = {process: resident_bytes(process) for process in _descendants(os.getpid())}
            sites = [size for process, size in sizes.items() if SITE in _command(process)]
            self.largest["all"] = max(self.largest["all"], sum(sizes.values()))
            self.largest["site"] = max([self.largest["site"], *sites])


def _descendants(process: int) -> list[int]:
    children = children_of(process)
    return [*children, *(below for child in children for below in _descendants(child))]


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text(errors="replace")
    except OSError:  # it has ended in the meantime
        return ""


def table(result: dict[str, Any]) -> str:
    """The result for a reader."""
    rows = [
        [
            *(case["sites"], case["threads"], case["backbone"]),
            *(case["seconds_beyond_training"][name] for name in ("median", "lowest", "highest")),
            *(case["resident_mib"][name] for name in ("largest_site", "largest_all")),
        ]
        for case in result["cases"]
    ]
    header = ["sites", "threads", "network", "s beyond training", "least", "most", "MiB of a site", "MiB of all"]
    return markdown_table(header, rows, 2)


if __name__ == "__main__":
    main()
