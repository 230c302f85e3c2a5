"""Measure rounds with a large model and without training: CPU time, memory, and the models on disk.

The bound is the sums alone: as many updates as there are sites added to one vector, in memory and not in the processor's
caches. It is measured in the same process after the run.

    python -m benchmarks.rounds.large
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import MEBIBYTE, in_child, in_turn, milliseconds, peak_mib, run, table

CASES = ((2, 10_000_000), (10, 10_000_000), (10, 100_000_000))
ROUNDS, BOUNDS = 6, 15
BEYOND_CACHES = 1 << 27
"""Numbers that are more than any cache holds: updates of a smaller model are several."""


def measured(options: argparse.Namespace) -> dict[str, Any]:
    cases = ((2, 1_000_000),) if options.quick else CASES
    return {"cases": [in_child("benchmarks.rounds.large.large", sites=sites, parameters=n) for sites, n in cases]}


def large(sites: int, parameters: int) -> dict[str, Any]:
    from benchmarks.parties import one_set_of_images, run_clocked, site_names, trivial_job

    with tempfile.TemporaryDirectory() as folder:
        images = one_set_of_images(Path(folder) / "images")
        clock, _ = run_clocked(trivial_job(parameters, ROUNDS), Path(folder), site_names(sites), images)
        files = [path.stat() for path in Path(folder).rglob("*.pt")]
    peak, costs = peak_mib(), milliseconds(clock.rounds(), 1)
    bound = milliseconds(in_turn({"sums": sums_alone(sites, parameters)}, BOUNDS)["sums"], 1)
    return {
        "sites": sites,
        "parameters": parameters,
        "milliseconds_per_round": costs,
        "milliseconds_of_sums_alone": bound,
        "over_sums_alone": round(costs["cpu"]["median"] / bound["cpu"]["median"], 2),
        "resident_mib_by_round": [round(mib) for mib in clock.resident],
        "peak_mib": round(peak),
        "names_of_models": len(files),
        "models_on_disk": len({file.st_ino for file in files}),
        "mib_on_disk": round(sum({file.st_ino: file.st_size for file in files}.values()) / MEBIBYTE),
    }


def sums_alone(sites: int, parameters: int) -> Any:
    """What adds an update of each site to a vector."""
    import torch

    updates = [torch.ones(parameters) for _ in range(max(2, BEYOND_CACHES // parameters))]
    total = torch.zeros(parameters)

    def add() -> None:
        for number in range(sites):
            total.add_(updates[number % len(updates)])

    return add


def tables(result: dict[str, Any]) -> str:
    columns = {
        "sites": "sites", "numbers": "parameters", "s of the processor per round": "s", "s of the clock": "clock",
        "sums alone": "bound", "times": "over_sums_alone", "peak MiB": "peak_mib", "names of models": "names_of_models",
        "models on disk": "models_on_disk", "MiB on disk": "mib_on_disk",
    }  # fmt: skip
    rows = [
        {
            **case,
            "s": case["milliseconds_per_round"]["cpu"]["median"] / 1000,
            "clock": case["milliseconds_per_round"]["wall"]["median"] / 1000,
            "bound": case["milliseconds_of_sums_alone"]["cpu"]["median"] / 1000,
        }
        for case in result["cases"]
    ]
    return table(columns, rows, 2)


if __name__ == "__main__":
    run(__file__, measured, tables)
