"""Measure what a second core gives to a simulation: rounds of ten sites with one worker and with several.

Runs with one worker and with several are taken in turn, each in a process of its own; the ratio is of neighbouring runs.
After them as many programs as workers run at the same time, each a simulation with one worker of its own. They share nothing
and never wait for each other: how much they train together, beside one alone, shows what the machine's cores can give.
The sites' own training times in a round tell what is lost: they grow where cores slow each other down, and what is left of
the round is the workers' waiting and the server's work. Memory is the proportional set size of a run's processes together at
its peak. The models must be equal to the bit. Wall-clock time counts here, so the machine must be idle; the load before each
run is in the result.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import statistics
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import MEBIBYTE, in_child, run, spread, table

SITES, ROUNDS = 10, 3
CASES = (("compact", 64, 26), ("efficientnet_lite0", 64, 12))
WATCH_SECONDS = 0.2


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All networks; pairs of runs in turn."""
    sizes = {"sites": 3, "rounds": 2} if options.quick else {"sites": SITES, "rounds": ROUNDS}
    cases = [("compact", 32, 2)] if options.quick else CASES
    found = []
    for backbone, side, steps in cases:
        turns = []
        for _ in range(1 if options.quick else options.pairs):
            arguments = {"backbone": backbone, "side": side, "steps": steps, **sizes}
            turn = {}
            for name, workers in (("one", 1), ("several", options.workers)):
                load = round(os.getloadavg()[0], 2)
                turn[name] = {"load": load, **in_child("benchmarks.cores.run.case", workers=workers, **arguments)}
            turns.append({**turn, "apart": _at_once(options.workers, arguments)})
        found.append(compared(f"{backbone}, {side} px, {steps} steps", options.workers, turns))
    return {"cases": found, **sizes}


def _at_once(count: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """Programs that share nothing: the training seconds of each, the model and the load before."""
    load = round(os.getloadavg()[0], 2)
    with ThreadPoolExecutor(count) as pool:
        started = [pool.submit(in_child, "benchmarks.cores.run.case", workers=1, **arguments) for _ in range(count)]
        runs = [run.result() for run in started]
    models = {run["model"] for run in runs}
    trained = [statistics.median(run["training_seconds"]) for run in runs]
    return {"load": load, "training_seconds": trained, "model": models.pop() if len(models) == 1 else "different"}


def case(backbone: str, side: int, steps: int, workers: int, sites: int, rounds: int) -> dict[str, Any]:
    """Seconds of each round but the first, and of its sites' training; CPU time, peak memory, digest of the last model."""
    import torch

    from benchmarks.parties import QUIET, one_set_of_images, site_names
    from grandrounds.deployment.jobs import load_job
    from grandrounds.deployment.presets import with_options
    from grandrounds.deployment.simulate import Execution, simulate
    from grandrounds.federation.server.record import read_events

    options = (f"controller.rounds={rounds}", f"problem.backbone={backbone}", f"executor.steps={steps}")
    alone = "executor.prefetch=off"  # else a run with one worker has a process that draws views, on the second core
    job = with_options(load_job("fedperl"), [*QUIET, f"problem.image_size={side}", alone, *options])
    with tempfile.TemporaryDirectory() as name, peak_pss() as peak:
        folder = Path(name)
        os.environ["GRANDROUNDS_CACHE"] = str(folder / "cache")
        images = one_set_of_images(folder / "images", size=side, images=240)
        summary = simulate(
            job, folder / "run", site_names(sites), images, Execution(workers=workers), allow_overlap=True
        )
        events = read_events(folder / "run" / "results")
        last = torch.load(folder / "run" / "results" / "last.pt", weights_only=True)
    training = [0.0] * (rounds + 1)
    for event in events:
        if event["event"] == "answer" and event["task"] == "train":
            training[event["round"]] += event["metrics"]["train_seconds"]
    digest = hashlib.sha256()
    for value in last.values():
        digest.update(value.contiguous().numpy().tobytes())
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "round_seconds": [entry["round_seconds"] for entry in summary["rounds"][1:]],
        "training_seconds": training[2:],
        "cpu_seconds": round(sum(one.ru_utime + one.ru_stime for one in usage), 2),
        "peak_mib": round(sum(peak), 1),
        "parts_mib": [round(part, 1) for part in peak],
        "model": digest.hexdigest(),
    }


@contextmanager
def peak_pss() -> Iterator[list[float]]:
    """The proportional set sizes of this process and its children, in MiB, when their sum was largest during the block."""
    import psutil

    from benchmarks.rehearsal.kit_processes import children_of

    peak, ended = list[float](), threading.Event()

    def watch() -> None:
        while not ended.wait(WATCH_SECONDS):
            parts = []
            for process in (os.getpid(), *children_of(os.getpid())):
                try:
                    parts.append(psutil.Process(process).memory_full_info().pss / MEBIBYTE)
                except (psutil.Error, OSError):  # it has just ended
                    continue
            peak[:] = max(peak, parts, key=sum)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def compared(title: str, workers: int, turns: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Ratios of neighbouring runs.

    Raises:
        SystemExit: if the models of two runs differ.
    """
    if len({run["model"] for turn in turns for run in turn.values()}) != 1:
        raise SystemExit(f"{title}: the models of runs with 1 and {workers} workers differ")

    def median(turn: dict[str, dict[str, Any]], kind: str, value: str) -> float:
        return statistics.median(turn[kind][value])

    def of(value: str) -> dict[str, float]:
        return {kind: statistics.median(turn[kind][value] for turn in turns) for kind in ("one", "several")}

    def spreads(value: str) -> dict[str, Any]:
        return {kind: spread([median(turn, kind, value) for turn in turns], 3) for kind in ("one", "several")}

    return {
        "case": title,
        "workers": workers,
        "seconds_per_round": spreads("round_seconds"),
        "training_seconds_per_round": spreads("training_seconds"),
        "speed": spread(
            [median(turn, "one", "round_seconds") / median(turn, "several", "round_seconds") for turn in turns], 2
        ),
        "limit": spread(
            [
                sum(median(turn, "one", "training_seconds") / seconds for seconds in turn["apart"]["training_seconds"])
                for turn in turns
            ],
            2,
        ),
        "cpu_seconds": of("cpu_seconds"),
        "peak_mib": of("peak_mib"),
        "parts_mib": turns[0]["several"]["parts_mib"],
        "loads": [run["load"] for turn in turns for run in turn.values()],
    }


def tables(result: dict[str, Any]) -> str:
    rows = [
        {
            **case,
            "range": f"{case['speed']['lowest']:.2f} to {case['speed']['highest']:.2f}",
            "limits": f"{case['limit']['lowest']:.2f} to {case['limit']['highest']:.2f}",
            "one": case["seconds_per_round"]["one"]["median"],
            "several": case["seconds_per_round"]["several"]["median"],
            "trained": case["training_seconds_per_round"]["one"]["median"],
            "trained_together": case["training_seconds_per_round"]["several"]["median"],
            "memory": case["peak_mib"]["several"] / case["peak_mib"]["one"],
            "parts": ", ".join(f"{part:.0f}" for part in case["parts_mib"]),
            "load": f"{min(case['loads']):.1f} to {max(case['loads']):.1f}",
        }
        for case in result["cases"]
    ]
    columns = {
        "FedPerl": "case", "workers": "workers", "s per round, one worker": "one", "s per round": "several",
        "times as fast": "speed.median", "range": "range", "training of programs at once": "limit.median",
        "its range": "limits", "s of training, one worker": "trained",
        "s of training": "trained_together", "memory, of one worker's": "memory",
        "MiB of the parent and each worker": "parts",
        "load before": "load",
    }  # fmt: skip
    return table(columns, rows, 2)


if __name__ == "__main__":
    run(__file__, measured, tables, pairs={"type": int, "default": 5}, workers={"type": int, "default": 2})
