"""Rounds of Flower's simulation with the training function of the rounds without training, to stand beside them.

Flower needs an environment of its own, because it asks for other versions of libraries that FLARE has too. Its first
round starts Ray's processes and does not count.

    python -m venv runs/flower && runs/flower/bin/pip install "flwr[simulation]"
    python -m benchmarks.rounds.flower --python runs/flower/bin/python
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.measure import arguments_of, report, spread
from grandrounds.evaluation.tables import markdown_table

RESULT = Path(__file__).with_name("flower.json")
SCRIPT = Path(__file__).with_name("flower_rounds.py")
CASES = ((2, 100), (4, 100), (10, 100))
ROUNDS = 25


def main() -> None:
    """Measure all cases, print a table and write ``flower.json``."""
    python = {"type": Path, "required": True, "help": "Python of an environment with flwr[simulation]"}
    options = arguments_of(__doc__, RESULT, python=python)
    load = os.getloadavg()[0]
    cases = CASES[:1] if options.quick else CASES
    result = {"cases": [flower_rounds(options.python.absolute(), *case) for case in cases]}
    print(tables(result))
    report(result, options, load)


def flower_rounds(python: Path, sites: int, parameters: int) -> dict[str, Any]:
    """Milliseconds of a round."""
    command = [str(python), str(SCRIPT), *map(str, (sites, parameters, ROUNDS))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    return {
        "sites": sites,
        "parameters": parameters,
        "milliseconds_per_round": spread([1000 * seconds for seconds in told["seconds"][1:]], 3),
        "flower": told["versions"],
    }


def tables(result: dict[str, Any]) -> str:
    """The result for a reader."""
    rows = []
    for case in result["cases"]:
        whole = case["milliseconds_per_round"]["median"]
        rows.append([case["sites"], case["parameters"], whole, whole / case["sites"]])
    versions = result["cases"][0]["flower"]
    laid_out = markdown_table(["sites", "numbers", "ms per round", "ms per site"], rows, 1)
    return f"{laid_out}\n\nFlower {versions['flwr']}, Ray {versions['ray']}."


if __name__ == "__main__":
    main()
