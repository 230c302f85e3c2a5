"""Run FedPerl for a long time on a federation of real processes, and make a fault now and then.

The server and three hospitals run from startup kits on phantoms; each training has a child process. Faults are those of
``python -m benchmarks.rehearsal`` but for the links: each comes when the last one is recovered from. The run is submitted
again without help. The result has rounds, attempts, contributions, faults of the record, and the memory of each kind of
process; what each fault costs is measured by the rehearsal.

Growth of memory is estimated within the lives of processes: one slope for all processes of a kind, and a level for each
process. Its first rounds are left out. Processes that are killed do not live long; a second run without faults measures
growth from round 100 on.

    python -m benchmarks.soak.run --minutes 56 --every 60
    python -m benchmarks.soak.run --minutes 22 --every 1e9 --warm-up 100 --out benchmarks/soak/undisturbed.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.federation import new_federation
from benchmarks.measure import MEBIBYTE, run, table
from benchmarks.processes import resident_bytes
from benchmarks.rehearsal.faults import FAULT_KINDS, LINK_FAULTS, RENEWAL_FAULTS, FaultStage, drawn_faults
from benchmarks.rehearsal.federated_run import MODULES, TRAINING, FederatedRun, started_run
from benchmarks.rehearsal.watching import FaultWatch
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.federation.checkpoints import read_saved
from grandrounds.plotting import BLUE, label_axes, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SITES = ("hospital-a", "hospital-b", "hospital-c")
MAX_ATTEMPTS = 10_000
SAMPLE_SECONDS = 5.0
WARM_UP_ROUNDS = 3
MIN_ROUNDS = 20
"""Rounds in the lives of all processes of a kind from which a growth is reported."""
OPTIONS = (
    *("controller.run_name=soak", "controller.rounds=100000", "controller.min_sites=2", "controller.grace=20"),
    *("controller.round_timeout=300", "controller.warm_up=1", "controller.validate_every=5"),
    *("executor.steps=2", "executor.batch_size=8", "executor.device=cpu", "executor.cpu_threads=1"),
    *("executor.threshold=0.26",),
)
Life = list[tuple[float, int, int]]
"""Of one process at successive moments, the minutes, the number of complete rounds and its memory in bytes."""


def measured(options: argparse.Namespace) -> dict[str, Any]:
    minutes, every = (2.0, 30.0) if options.quick else (options.minutes, options.every)
    job = with_options(load_job("fedperl"), OPTIONS)
    lives = dict[tuple[str, int], Life]()
    with started_run(new_federation(options.workspace, SITES), job, MAX_ATTEMPTS) as soaked:
        started = time.monotonic()
        drawn = drawn_faults(
            0, SITES, every, [kind for kind in FAULT_KINDS if kind not in LINK_FAULTS | RENEWAL_FAULTS]
        )
        stage, faults = FaultStage(soaked), FaultWatch(drawn, SITES, started)
        try:
            while (now := time.monotonic()) - started < 60 * minutes:
                if number := len(soaked.rounds()):
                    sample(soaked, (now - started) / 60, number, lives)
                    faults.look(now, stage)
                soaked.wait(SAMPLE_SECONDS)
        finally:
            faults.end(time.monotonic())
        watched = time.monotonic() - started
        ends, untrue = soaked.rounds(), record_faults(soaked)
    given = Counter(site for event in ends for site in event["answered"])
    return {
        "rounds": len(ends),
        "attempts": sum(line.startswith("submitted as") for line in soaked.messages),
        "faults": dict(Counter(cost.kind for cost in faults.costs)),
        "untrue_in_the_record": untrue,
        "contributions": {site: given[site] for site in SITES},
        "rounds_with_a_site_dropped": sum(bool(event["dropped"]) for event in ends),
        "median_round_seconds": round(float(np.median([event["round_seconds"] for event in ends])), 2),
        "memory": memory(lives, options.warm_up),
        "lives": {
            kind: [each_minute(life) for life in alike] for kind, alike in by_kind(lives).items() if kind in MODULES
        },
        "warm_up": options.warm_up,
        "minutes": round(watched / 60, 1),
    }


def sample(soaked: FederatedRun, minutes: float, number: int, lives: dict[tuple[str, int], Life]) -> None:
    for kind in (*MODULES, TRAINING):
        for process in soaked.processes(kind):
            if size := resident_bytes(process):
                lives.setdefault((kind, process), []).append((minutes, number, size))


def record_faults(soaked: FederatedRun) -> list[str]:
    """What is not true or not complete in the record of the run so far, and in its newest checkpoint; none is expected."""
    ends = soaked.rounds()
    found = [f"round {number} is out of order" for number, end in enumerate(ends, 1) if end["round"] != number]
    for end in ends:
        if {*end["asked"]} != {*end["answered"], *end["dropped"]} or not all(end["dropped"].values()):
            found.append(f"round {end['round']}: a site that was asked has neither answered nor a reason")
    newest = max(soaked.record.glob("round_*.pt"))
    if not all_finite(read_saved(newest)):
        found.append(f"{newest.name} has numbers that are not finite")
    return found


def all_finite(value: Any) -> bool:
    """Whether all tensors in nested dictionaries are finite."""
    if isinstance(value, torch.Tensor):
        return bool(value.isfinite().all())
    return all(map(all_finite, value.values())) if isinstance(value, dict) else True


def by_kind(lives: dict[tuple[str, int], Life]) -> dict[str, list[Life]]:
    kinds: dict[str, list[Life]] = defaultdict(list)
    for (kind, _), life in lives.items():
        kinds[kind].append(life)
    return kinds


def each_minute(life: Life) -> dict[str, list[float]]:
    """The first sample of each minute: minutes, rounds and MiB."""
    first = {int(minutes): (minutes, number, size) for minutes, number, size in reversed(life)}
    chosen = [first[minute] for minute in sorted(first)]
    return {
        "minutes": [round(minutes, 1) for minutes, _, _ in chosen],
        "rounds": [number for _, number, _ in chosen],
        "mib": [round(size / MEBIBYTE, 1) for _, _, size in chosen],
    }


def memory(lives: dict[tuple[str, int], Life], warm_up: int) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for kind, alike in by_kind(lives).items():
        sizes = [size / MEBIBYTE for life in alike for _, _, size in life]
        levels = {"median_mib": round(statistics.median(sizes), 1), "largest_mib": round(max(sizes), 1)}
        found[kind] = {"processes": len(alike), **levels}
        if kind in MODULES:  # a training lasts no longer than its task
            found[kind]["growth_mib_per_100_rounds"] = growth(alike, warm_up)
    return found


def growth(lives: list[Life], warm_up: int = WARM_UP_ROUNDS) -> dict[str, Any]:
    """Mebibytes in a hundred rounds, by least squares with one slope for all processes and a level for each.

    None where all processes together have lived less than ``MIN_ROUNDS`` after their first rounds.
    """
    settled = [np.array([(n, size) for _, n, size in life if n >= life[0][1] + warm_up], float) for life in lives]
    settled = [samples for samples in settled if len(samples) and samples[-1, 0] > samples[0, 0]]
    rounds = sum(int(samples[-1, 0] - samples[0, 0]) for samples in settled)
    slope = None
    if rounds >= MIN_ROUNDS:
        numbers, sizes = np.concatenate([samples - samples.mean(axis=0) for samples in settled]).T
        slope = round(float(numbers @ sizes / (numbers @ numbers)) * 100 / MEBIBYTE, 2)
    return {"value": slope, "processes": len(settled), "rounds": rounds}


def tables(result: dict[str, Any]) -> str:
    cases = [{"kind": kind, **found} for kind, found in result["memory"].items()]
    for case in cases:
        case["growth"] = case.get("growth_mib_per_100_rounds", {}).get("value")
    columns = {"process": "kind", "number": "processes", "median MiB": "median_mib", "largest MiB": "largest_mib"}
    facts = {
        "minutes": result["minutes"],
        "rounds": result["rounds"],
        "attempts": result["attempts"],
        "rounds with a site dropped": result["rounds_with_a_site_dropped"],
        "s per round (median)": result["median_round_seconds"],
        "faults": ", ".join(f"{kind} {count}" for kind, count in result["faults"].items()) or "none",
    }
    if "untrue_in_the_record" in result:
        facts["untrue in the record"] = "; ".join(result["untrue_in_the_record"]) or "nothing"
    listed = "\n".join(f"* {name}: {value}" for name, value in facts.items())
    return f"{listed}\n\n{table({**columns, 'growth, MiB in 100 rounds': 'growth'}, cases, 1)}"


def drawing(result: dict[str, Any]) -> tuple[str, Figure]:
    """Memory over time, with a panel for each kind of process and a line for each process."""
    figure = new_figure(9, 5.5)
    for axes, kind in zip(figure.subplots(2, 2, sharex=True).flat, MODULES, strict=True):
        for life in result["lives"].get(kind, []):
            axes.plot(life["minutes"], life["mib"], color=BLUE, linewidth=1.2, marker=".", markersize=4)
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        axes.spines[["top", "right"]].set_visible(False)
        label_axes(axes, "minutes", "resident MiB", kind)
    return "Memory of each process over time", figure


if __name__ == "__main__":
    run(
        __file__,
        measured,
        tables,
        workspace={"type": Path, "default": Path("runs/soak"), "help": "is emptied first"},
        minutes={"type": float, "default": 30.0},
        every={"type": float, "default": 30.0, "help": "mean seconds between faults"},
        warm_up={"type": int, "default": WARM_UP_ROUNDS, "help": "first rounds of a process that are left out"},
    )
