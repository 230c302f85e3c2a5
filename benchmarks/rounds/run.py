"""Measure the cost of a round beyond its training in one process, and the cost of starting a site's process.

1. Rounds without any training, beside a bare loop with the same sums, and the CPU time by part of the program.
2. Rounds of ten sites that train: CPU time outside the training over that inside.
3. A site's process: time and memory of its imports and of the first optimizer step, beside torch's own optimizer.

A run takes about a minute and a half of CPU time.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import Cost, in_child, in_turn, milliseconds, run, spread, table
from benchmarks.rounds.shares import PARTS

MODULE = "benchmarks.rounds.run"
SMALL = 100
TRAINED_SITES, TRAINED_OPTIONS = 10, ("problem.image_size=64", "executor.steps=26")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All three, each part in a process of its own."""
    counts, rounds = ((2, 10), 4) if options.quick else ((2, 4, 10, 100), 12)
    trained_sites, trained_rounds = (2, 4) if options.quick else (TRAINED_SITES, 8)
    starts = {name: in_child("benchmarks.rounds.start.start", own=name == "ours") for name in ("ours", "torch's own")}
    return {
        "in_process": [in_child(f"{MODULE}.idle", sites=sites, parameters=SMALL, rounds=rounds) for sites in counts],
        "shares": in_child("benchmarks.rounds.shares.shares"),
        "trained": in_child(f"{MODULE}.trained", sites=trained_sites, rounds=trained_rounds),
        "site_process": starts,
    }


def idle(sites: int, parameters: int, rounds: int) -> dict[str, Any]:
    from benchmarks.parties import one_set_of_images, run_clocked, site_names, trivial_job

    with tempfile.TemporaryDirectory() as folder:
        images = one_set_of_images(Path(folder) / "images")
        clock, _ = run_clocked(trivial_job(parameters, rounds), Path(folder), site_names(sites), images)
    costs = clock.rounds()
    bare = in_turn({"loop": lambda: bare_round(parameters, sites)}, len(costs))["loop"]

    def per_site(whole: list[Cost]) -> list[Cost]:
        return [cost.over(sites) for cost in whole]

    return {
        "sites": sites,
        "parameters": parameters,
        "rounds": len(costs),
        "milliseconds_per_round": milliseconds(costs),
        "milliseconds_per_site_and_round": milliseconds(per_site(costs)),
        "bare_loop_milliseconds_per_site_and_round": milliseconds(per_site(bare), 4),
    }


def bare_round(parameters: int, sites: int) -> None:
    """A copy of the model to each site, an update back, the mean, and the next model."""
    import torch

    state, total = torch.zeros(parameters), torch.zeros(parameters)
    for _ in range(sites):
        total += torch.ones_like(state.clone()).clone()
    state + total / sites


def trained(sites: int, rounds: int) -> dict[str, Any]:
    from benchmarks.parties import TRAIN_CPU, one_set_of_images, run_clocked, site_names, trained_job
    from grandrounds.federation.server.record import read_events

    with tempfile.TemporaryDirectory() as folder:
        job = trained_job(rounds, *TRAINED_OPTIONS)
        images = one_set_of_images(Path(folder) / "images", size=64, images=240)
        clock, _ = run_clocked(job, Path(folder), site_names(sites), images)
        events = read_events(Path(folder) / "run" / "results")
    inside = [0.0] * (rounds + 1)
    for event in events:
        if event["event"] == "answer" and event["task"] == "train":
            inside[event["round"]] += event["metrics"][TRAIN_CPU]
    pairs = [(whole.cpu - training, training) for whole, training in zip(clock.rounds(), inside[2:], strict=False)]
    return {
        "sites": sites,
        "options": list(TRAINED_OPTIONS),
        "training_cpu_seconds_per_round": spread([training for _, training in pairs]),
        "outside_over_training": spread([outside / training for outside, training in pairs]),
        "outside_milliseconds_per_site": spread([1000 * outside / sites for outside, _ in pairs]),
    }


def tables(result: dict[str, Any]) -> str:
    shares, training = result["shares"], result["trained"]
    sites, percent = shares["sites"], shares["percent"]
    alike = [case for case in result["in_process"] if case["sites"] == sites]
    ms = alike[0]["milliseconds_per_site_and_round"]["cpu"]["median"]
    rows = [{"part": name, "percent": percent[part], "ms": percent[part] * ms / 100} for part, name in PARTS.items()]
    waiting = shares["milliseconds_of_disk_per_round"] / sites
    rows.append({"part": "waiting for the disk, by the clock", "percent": None, "ms": waiting})
    idle_columns = {
        "sites": "sites", "numbers": "parameters", "ms per round": "milliseconds_per_round.wall.median",
        "ms per site": "milliseconds_per_site_and_round.wall.median",
        "of the processor": "milliseconds_per_site_and_round.cpu.median",
        "bare loop, of the processor": "bare_loop_milliseconds_per_site_and_round.cpu.median",
    }  # fmt: skip
    share_columns = {f"a round of {sites} sites": "part", "% of the processor's time": "percent", "ms per site": "ms"}
    trained_columns = {
        "sites": "sites", "s of training per round": "training_cpu_seconds_per_round.median",
        "ms outside it per site": "outside_milliseconds_per_site.median", "in % of it": "percent",
    }  # fmt: skip
    start_columns = {
        "optimizer": "name", "MiB after all imports": "mib_after_imports", "MiB after a step": "mib_after_step",
        "s of imports": "cpu_seconds_of_imports", "s of the first step": "cpu_seconds_of_step",
    }  # fmt: skip
    training = {**training, "percent": 100 * training["outside_over_training"]["median"]}
    starts = [{"name": name, **found} for name, found in result["site_process"].items()]
    parts = (share_columns, rows), (trained_columns, [training]), (start_columns, starts)
    return "\n\n".join([table(idle_columns, result["in_process"], 3), *(table(*part, 2) for part in parts)])


if __name__ == "__main__":
    run(__file__, measured, tables)
