"""Measure rounds of Flower's simulation without training, for comparison.

Flower needs an environment of its own, because it requires other versions of FLARE's libraries. The first round starts
Ray's processes and is left out.

    python -m venv runs/flower && runs/flower/bin/pip install "flwr[simulation]"
    python -m benchmarks.rounds.flower --python runs/flower/bin/python
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.measure import output_of, run, spread, table

SCRIPT = Path(__file__).with_name("flower_rounds.py")
CASES = ((2, 100), (4, 100), (10, 100))
ROUNDS = 25


def measured(options: argparse.Namespace) -> dict[str, Any]:
    cases = CASES[:1] if options.quick else CASES
    return {"cases": [flower_rounds(options.python.absolute(), *case) for case in cases]}


def flower_rounds(python: Path, sites: int, parameters: int) -> dict[str, Any]:
    reported = output_of([str(part) for part in (python, SCRIPT, sites, parameters, ROUNDS)])
    return {
        "sites": sites,
        "parameters": parameters,
        "milliseconds_per_round": spread([1000 * seconds for seconds in reported["seconds"][1:]], 3),
        "flower": reported["versions"],
    }


def tables(result: dict[str, Any]) -> str:
    cases = [{**case, "ms": case["milliseconds_per_round"]["median"] / case["sites"]} for case in result["cases"]]
    columns = {"sites": "sites", "numbers": "parameters"}
    columns |= {"ms per round": "milliseconds_per_round.median", "ms per site": "ms"}
    versions = cases[0]["flower"]
    return f"{table(columns, cases, 1)}\n\nFlower {versions['flwr']}, Ray {versions['ray']}."


if __name__ == "__main__":
    run(__file__, measured, tables, python={"type": Path, "required": True, "help": "Python with flwr[simulation]"})
