"""Measure what a second core gives to a simulation: rounds of ten sites with one worker and with several.

Runs with one worker and with several are taken in turn, each in a process of its own; the ratio is of neighbouring runs.
The machine's limit is measured in the same turn: as many runs with one worker at the same time, which share nothing and
wait for nothing. Memory is the proportional set size of a run's processes together at its peak. The process that leads the
workers does not train: what it has at the end is shared by all, and the rest of the peak is what each of them needs.
The models must be equal to the bit. Wall-clock time counts here, so the machine must be idle; the load before each run is
in the result.
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

SITES, ROUNDS = 10, 4
CASES = (("compact", 64, 26), ("efficientnet_lite0", 64, 4))
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
            for name, workers, at_once in (
                ("one", 1, 1),
                ("several", options.workers, 1),
                ("apart", 1, options.workers),
            ):
                load = round(os.getloadavg()[0], 2)
                with ThreadPoolExecutor(at_once) as pool:
                    runs = [
                        pool.submit(in_child, "benchmarks.cores.run.case", workers=workers, **arguments)
                        for _ in range(at_once)
                    ]
                turn[name] = {"load": load, "runs": [run.result() for run in runs]}
            turns.append(turn)
        found.append(compared(f"{backbone}, {side} px, {steps} steps", options.workers, turns))
    return {"cases": found, **sizes}


def case(backbone: str, side: int, steps: int, workers: int, sites: int, rounds: int) -> dict[str, Any]:
    """Seconds of each round but the first, seconds of CPU time, peak memory, and the digest of the last model."""
    import torch

    from benchmarks.parties import QUIET, one_set_of_images, site_names
    from grandrounds.deployment.jobs import load_job, with_options
    from grandrounds.deployment.simulate import simulate

    options = (f"controller.rounds={rounds}", f"problem.backbone={backbone}", f"executor.steps={steps}")
    alone = "executor.prefetch=off"  # else a run with one worker has a process that draws views, on the second core
    job = with_options(load_job("fedperl"), [*QUIET, f"problem.image_size={side}", alone, *options])
    with tempfile.TemporaryDirectory() as name, peak_pss() as peak:
        folder = Path(name)
        os.environ["GRANDROUNDS_CACHE"] = str(folder / "cache")
        images = one_set_of_images(folder / "images", size=side, images=240)
        summary = simulate(job, folder / "run", site_names(sites), images, workers=workers)
        last = torch.load(folder / "run" / "results" / "last.pt", weights_only=True)
    digest = hashlib.sha256()
    for value in last.values():
        digest.update(value.contiguous().numpy().tobytes())
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "round_seconds": [entry["round_seconds"] for entry in summary["rounds"][1:]],
        "cpu_seconds": round(sum(one.ru_utime + one.ru_stime for one in usage), 2),
        "peak_mib": round(sum(peak), 1),
        "parts_mib": [round(part, 1) for part in peak],
        "model": digest.hexdigest(),
    }


@contextmanager
def peak_pss() -> Iterator[list[float]]:
    """The proportional set sizes of this process and its children, in MiB, when their sum was largest during the block."""
    import psutil

    from benchmarks.processes import children_of

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
    if len({run["model"] for turn in turns for kind in turn.values() for run in kind["runs"]}) != 1:
        raise SystemExit(f"{title}: the models of runs with 1 and {workers} workers differ")

    def seconds(turn: dict[str, dict[str, Any]], kind: str) -> float:
        return statistics.fmean(statistics.median(run["round_seconds"]) for run in turn[kind]["runs"])

    def of(kind: str, value: str) -> float:
        return statistics.median(run[value] for turn in turns for run in turn[kind]["runs"])

    return {
        "case": title,
        "workers": workers,
        "seconds_per_round": {kind: spread([seconds(turn, kind) for turn in turns], 3) for kind in turns[0]},
        "speed": spread([seconds(turn, "one") / seconds(turn, "several") for turn in turns], 2),
        "limit": spread([workers * seconds(turn, "one") / seconds(turn, "apart") for turn in turns], 2),
        "cpu_seconds": {kind: of(kind, "cpu_seconds") for kind in turns[0]},
        "peak_mib": {kind: of(kind, "peak_mib") for kind in turns[0]},
        "parts_mib": turns[0]["several"]["runs"][0]["parts_mib"],
        "loads": [kind["load"] for turn in turns for kind in turn.values()],
    }


def tables(result: dict[str, Any]) -> str:
    rows = [
        {
            **case,
            "range": f"{case['speed']['lowest']:.2f} to {case['speed']['highest']:.2f}",
            "limits": f"{case['limit']['lowest']:.2f} to {case['limit']['highest']:.2f}",
            "one": case["seconds_per_round"]["one"]["median"],
            "several": case["seconds_per_round"]["several"]["median"],
            "memory": case["peak_mib"]["several"] / case["peak_mib"]["one"],
            "parts": ", ".join(f"{part:.0f}" for part in case["parts_mib"]),
            "load": f"{min(case['loads']):.1f} to {max(case['loads']):.1f}",
        }
        for case in result["cases"]
    ]
    columns = {
        "FedPerl": "case", "workers": "workers", "s per round, one worker": "one", "s per round": "several",
        "times as fast": "speed.median", "range": "range", "runs that share nothing": "limit.median",
        "their range": "limits", "memory, of one worker's": "memory", "MiB of the parent and each worker": "parts",
        "load before": "load",
    }  # fmt: skip
    return table(columns, rows, 2)


if __name__ == "__main__":
    run(__file__, measured, tables, pairs={"type": int, "default": 5}, workers={"type": int, "default": 2})
