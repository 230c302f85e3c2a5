"""Measure rounds without training, of Flower's simulation and of this package in turn, in wall-clock time.

Flower needs an environment of its own, because it requires other versions of FLARE's libraries. The first round is left
out: it starts Ray's processes, or loads the sites' images.

    python -m venv runs/flower && runs/flower/bin/pip install "flwr[simulation]"
    python -m benchmarks.rounds.flower --python runs/flower/bin/python
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import in_child, output_of, run, spread, table

SCRIPT = Path(__file__).with_name("flower_rounds.py")
CASES = ((2, 100), (4, 100), (10, 100))
ROUNDS, PAIRS = 25, 5


def measured(options: argparse.Namespace) -> dict[str, Any]:
    cases, pairs = (CASES[:1], 1) if options.quick else (CASES, PAIRS)
    return {"cases": [case(options.python.absolute(), *sizes, pairs) for sizes in cases]}


def case(python: Path, sites: int, parameters: int, pairs: int) -> dict[str, Any]:
    """Medians of a run's rounds, for each pair of runs; and how many times Flower's is ours."""
    ours, flower, loads, versions = [], [], [], {}
    for _ in range(pairs):
        loads.append(os.getloadavg()[0])
        mine = in_child("benchmarks.rounds.flower.own_rounds", sites=sites, parameters=parameters)
        reported = output_of([str(part) for part in (python, SCRIPT, sites, parameters, ROUNDS)])
        versions = reported["versions"]
        ours.append(mine)
        flower.append(1000 * statistics.median(reported["seconds"][1:]))
    return {
        "sites": sites,
        "parameters": parameters,
        "ours": spread(ours, 3),
        "flower": spread(flower, 3),
        "flower_over_ours": spread([theirs / own for own, theirs in zip(ours, flower, strict=True)], 2),
        "load": spread(loads, 2),
        "versions_of_flower": versions,
    }


def own_rounds(sites: int, parameters: int) -> float:
    """The median of our rounds, in milliseconds."""
    from benchmarks.parties import one_set_of_images, run_clocked, site_names, trivial_job

    with tempfile.TemporaryDirectory() as folder:
        images = one_set_of_images(Path(folder) / "images")
        clock, _ = run_clocked(trivial_job(parameters, ROUNDS), Path(folder), site_names(sites), images)
    return 1000 * statistics.median(cost.wall for cost in clock.rounds())


def tables(result: dict[str, Any]) -> str:
    columns = {
        "sites": "sites", "numbers": "parameters", "ms per round, ours": "ours.median", "Flower": "flower.median",
        "lowest": "flower.lowest", "highest": "flower.highest", "Flower / ours": "flower_over_ours.median",
        "lowest ratio": "flower_over_ours.lowest", "highest ratio": "flower_over_ours.highest", "load": "load.median",
    }  # fmt: skip
    cases = result["cases"]
    versions, pairs = cases[0]["versions_of_flower"], cases[0]["ours"]["count"]
    return f"{table(columns, cases, 1)}\n\nFlower {versions['flwr']}, Ray {versions['ray']}; {pairs} pairs of runs."


if __name__ == "__main__":
    run(__file__, measured, tables, python={"type": Path, "required": True, "help": "Python with flwr[simulation]"})
