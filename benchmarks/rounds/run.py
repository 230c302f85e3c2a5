"""What a round costs beyond the training in it, in one process, and what starting a site's process costs.

1. Rounds without any training, beside a bare loop that makes the same sums. Per site and round, with a vector of a hundred
   numbers and one of eight million; and whose time it is.
2. Ten sites that do train: processor time outside the training over that inside.
3. A site's process: time and memory of its imports, and of the first step of an optimizer, torch's own beside it.

FLARE's own processes are in ``simulator.py``. About a minute and a half of processor time.

    python -m benchmarks.rounds.run
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import Cost, arguments_of, emit, in_child, in_turn, milliseconds, report, spread
from benchmarks.rounds.shares import PARTS
from grandrounds.evaluation.tables import markdown_table

RESULT = Path(__file__).with_name("result.json")
MODULE = "benchmarks.rounds.run"
SMALL, LARGE = 100, 8_000_000
TRAINED_SITES, TRAINED_OPTIONS = 10, ("problem.image_size=64", "executor.steps=26")


def main() -> None:
    """Measure all three, print tables and write ``result.json``."""
    options = arguments_of(
        __doc__,
        RESULT,
        part={"choices": ["idle", "trained"], "help": "measure this part alone and print it"},
        sites={"type": int, "default": 10},
        parameters={"type": int, "default": SMALL},
        rounds={"type": int, "default": 12},
    )
    if options.part:
        emit((idle if options.part == "idle" else trained)(options))
        return
    load, quick = os.getloadavg()[0], options.quick
    small, large, rounds = ((2, 10), (), 4) if quick else ((2, 4, 10, 100), (2, 4, 10), options.rounds)
    trained_sites, trained_rounds = (2, 4) if quick else (TRAINED_SITES, 8)
    cases = [(sites, SMALL) for sites in small] + [(sites, LARGE) for sites in large]
    idle_rounds = [
        in_child(MODULE, "--part", "idle", "--sites", sites, "--parameters", size, "--rounds", rounds)
        for sites, size in cases
    ]
    result = {
        "in_process": idle_rounds,
        "shares": in_child("benchmarks.rounds.shares"),
        "trained": in_child(MODULE, "--part", "trained", "--sites", trained_sites, "--rounds", trained_rounds),
        "site_process": {name: in_child("benchmarks.rounds.start", name) for name in ("ours", "torch's own")},
    }
    print(tables(result))
    report(result, options, load)


def idle(options: argparse.Namespace) -> dict[str, Any]:
    """Rounds without training, and those of a bare loop."""
    from benchmarks.parties import one_set_of_images, run_clocked, site_names, trivial_job

    with tempfile.TemporaryDirectory() as folder:
        images = one_set_of_images(Path(folder) / "images")
        job = trivial_job(options.parameters, options.rounds)
        clock, _ = run_clocked(job, Path(folder) / "run", site_names(options.sites), images)
    rounds = clock.rounds()
    bare = in_turn({"loop": lambda: bare_round(options.parameters, options.sites)}, len(rounds))["loop"]
    return {
        "sites": options.sites,
        "parameters": options.parameters,
        "rounds": len(rounds),
        "milliseconds_per_round": milliseconds(rounds),
        "milliseconds_per_site_and_round": milliseconds(_per_site(rounds, options.sites)),
        "bare_loop_milliseconds_per_site_and_round": milliseconds(_per_site(bare, options.sites), 4),
    }


def bare_round(parameters: int, sites: int) -> None:
    """A copy of the model to each site, an update back, the mean, and the next model."""
    import torch

    state, total = torch.zeros(parameters), torch.zeros(parameters)
    for _ in range(sites):
        total += torch.ones_like(state.clone()).clone()
    state + total / sites


def _per_site(costs: list[Cost], sites: int) -> list[Cost]:
    return [Cost(cost.wall / sites, cost.cpu / sites) for cost in costs]


def trained(options: argparse.Namespace) -> dict[str, Any]:
    """Share of processor time outside the sites' training, round by round."""
    from benchmarks.parties import TRAIN_CPU, one_set_of_images, run_clocked, site_names, trained_job
    from grandrounds.federation.server.record import read_events

    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "run"
        images = one_set_of_images(Path(folder) / "images", size=64, images=240)
        job = trained_job(options.rounds, *TRAINED_OPTIONS)
        clock, _ = run_clocked(job, workspace, site_names(options.sites), images)
        events = read_events(workspace / "results")
    inside = [0.0] * (options.rounds + 1)
    for event in events:
        if event["event"] == "answer" and event["task"] == "train":
            inside[event["round"]] += event["metrics"][TRAIN_CPU]
    rounds = list(zip(clock.rounds(), inside[2:], strict=False))
    return {
        "sites": options.sites,
        "options": list(TRAINED_OPTIONS),
        "training_cpu_seconds_per_round": spread([training for _, training in rounds]),
        "outside_over_training": spread([(whole.cpu - training) / training for whole, training in rounds]),
        "outside_milliseconds_per_site": spread(
            [1000 * (whole.cpu - training) / options.sites for whole, training in rounds]
        ),
    }


def tables(result: dict[str, Any]) -> str:
    """The result for a reader."""
    processes = [
        [
            *(case["sites"], case["parameters"], case["milliseconds_per_round"]["wall"]["median"]),
            *(case["milliseconds_per_site_and_round"][clock]["median"] for clock in ("wall", "cpu")),
            case["bare_loop_milliseconds_per_site_and_round"]["cpu"]["median"],
        ]
        for case in result["in_process"]
    ]
    header = ["sites", "numbers", "ms per round", "ms per site", "of the processor", "bare loop, of the processor"]
    shares = result["shares"]
    of_site = next(
        case["milliseconds_per_site_and_round"]["cpu"]["median"]
        for case in result["in_process"]
        if (case["sites"], case["parameters"]) == (shares["sites"], shares["parameters"])
    )
    share_rows = [
        [name, shares["percent"][part], shares["percent"][part] * of_site / 100] for part, name in PARTS.items()
    ]
    share_rows.append(
        ["waiting for the disk, by the clock", None, shares["milliseconds_of_disk_per_round"] / shares["sites"]]
    )
    whole = result["trained"]
    trained_row = [
        *(whole["sites"], whole["training_cpu_seconds_per_round"]["median"]),
        *(whole["outside_milliseconds_per_site"]["median"], 100 * whole["outside_over_training"]["median"]),
    ]
    starts = [[name, *(case[key] for key in STEPS)] for name, case in result["site_process"].items()]
    return "\n\n".join(
        [
            markdown_table(header, processes, 3),
            markdown_table(
                [f"a round of {shares['sites']} sites", "% of the processor's time", "ms per site"], share_rows, 2
            ),
            markdown_table(
                ["sites", "s of training per round", "ms outside it per site", "in % of it"], [trained_row], 2
            ),
            markdown_table(["optimizer", *STEPS.values()], starts, 2),
        ]
    )


STEPS = {
    "mib_after_imports": "MiB after all imports",
    "mib_after_step": "MiB after a step",
    "cpu_seconds_of_imports": "s of imports",
    "cpu_seconds_of_step": "s of the first step",
}


if __name__ == "__main__":
    main()
