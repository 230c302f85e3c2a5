"""Rehearse with new kits of a server and three hospitals: what each fault costs.

python -m benchmarks.rehearsal.run --hours 1
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from benchmarks.measure import run, table
from benchmarks.rehearsal.rehearse import Rehearsal, rehearse
from grandrounds.deployment.kit.provision import PROJECT, provision

FAULTS = {
    **{"fault": "kind", "times": "times", "rounds missed, of sites": "missed", "most at once": "most_missed"},
    **{"rounds repeated": "repeated", "recovered": "recovered", "s to recover, median": "median_seconds"},
    **{"longest": "longest_seconds", "with a usable model": "usable"},
}
RUNS = {
    **{"run": "name", "status": "status", "submissions": "attempts", "rounds": "rounds", "missed, of sites": "missed"},
    **{"s": "seconds", "accuracy": "scores.accuracy", "balanced accuracy": "scores.balanced_accuracy"},
}
UNKNOWN = {"accuracy": None, "balanced_accuracy": None}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    shutil.rmtree(options.workspace, ignore_errors=True)
    kits, hours = provision(PROJECT, options.workspace / "kits"), 0.03 if options.quick else options.hours
    plan = Rehearsal(hours, options.seed, options.rounds, options.every)
    return rehearse(kits, options.workspace / "rehearsal", plan, lambda line: print(line, flush=True))


def tables(result: dict[str, Any]) -> str:
    runs = [result["undisturbed"], *result["runs"]]
    difference = result["largest_difference"]
    facts = {
        "minutes with faults": result["minutes"],
        "minutes of the undisturbed run before": result["minutes_undisturbed"],
        "seed": result["seed"],
        "hospitals": result["sites"],
        "test images": result["test_images"],
        "largest difference of a score from the undisturbed run": "-" if difference is None else f"{difference:.3f}",
        "drawn with nothing to harm": ", ".join(result["nothing_to_harm"]) or "none",
        "left over": f"{result['left_processes']} processes, {result['left_files']} files",
        "the kits given": "unchanged" if result["kits_unchanged"] else "changed",
    }
    listed = "\n".join(f"* {name}: {value}" for name, value in facts.items())
    faults = table(FAULTS, ({"kind": kind, **found} for kind, found in result["by_fault"].items()), 1)
    compared = table(RUNS, ({**one, "scores": {**UNKNOWN, **one["scores"]}} for one in runs), 3)
    return f"{listed}\n\n{faults}\n\n{compared}"


if __name__ == "__main__":
    run(
        __file__,
        measured,
        tables,
        workspace={"type": Path, "default": Path("runs/rehearsal"), "help": "is emptied first"},
        hours={"type": float, "default": 1.0},
        seed={"type": int, "default": 0},
        rounds={"type": int, "default": 12},
        every={"type": float, "default": 20.0, "help": "mean seconds from a recovery to the next fault"},
    )
