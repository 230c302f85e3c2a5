"""A whole job in each form, in turn with an earlier commit: CPU time of ``fedavg`` with what was its recommended preset.

The preset ``scratch`` has the options that ``recommended`` had in commit 7931d40c. Each arm divides HAM10000 between ten
sites by its own code and trains in one process with one thread.

    git worktree add ../before 7931d40c
    python -m benchmarks.inference.job --before ../before
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.experiment import DATA
from benchmarks.measure import ROOT, run
from benchmarks.tables import markdown_table

BEFORE = "7931d40c"
DIVISION = ["--scheme", "sites", "--sites", "10", "--labelled", "0.25", "--seed", "4"]
"""The README's."""
FORMS = ("exact", "onnx", "bfloat16")
ROUNDS = 20


def measured(options: argparse.Namespace) -> dict[str, Any]:
    rounds = 1 if options.quick else options.rounds
    arms = {form: (ROOT, ["fedavg", "--preset", "scratch", "--set", f"executor.inference={form}"]) for form in FORMS}
    if options.before:
        arms = {BEFORE: (options.before.absolute(), ["fedavg", "--preset", "recommended"])} | arms
    arms["ridge"] = ROOT, ["ridge", "--preset", "recommended"]
    with tempfile.TemporaryDirectory() as folder:
        return {"rounds": rounds, "arms": {name: _arm(Path(folder) / name, *arm, rounds) for name, arm in arms.items()}}


def _arm(folder: Path, checkout: Path, job: list[str], rounds: int) -> dict[str, Any]:
    """Seconds of one run, and its mean balanced accuracy on the sites' test images."""
    sites, workspace = folder / "sites", folder / "run"
    _command(
        checkout, folder, ["partition", "ham10000", "--root", str(DATA / "ham10000"), *DIVISION, "--out", str(sites)]
    )
    length = [] if job[0] == "ridge" else ["--set", f"controller.rounds={rounds}"]
    wall, cpu = time.perf_counter(), _cpu()
    where = ["--sites-dir", str(sites), "--workspace", str(workspace), "--workers", "1"]
    _command(checkout, folder, ["simulate", *job, *where, *length])
    cost = {"wall": round(time.perf_counter() - wall, 1), "cpu": round(_cpu() - cpu, 1)}
    summary = json.loads((workspace / "results" / "summary.json").read_text())
    return {**cost, "round": summary["selected"]["round"], "score": round(summary["selected"]["score"], 4)}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _command(checkout: Path, folder: Path, arguments: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(checkout / "custom"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "grandrounds.cli", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:])} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")


def tables(result: dict[str, Any]) -> str:
    arms = result["arms"]
    first = next(iter(arms.values()))["cpu"]
    rows = [
        [name, arm["cpu"], arm["wall"], arm["cpu"] / first, f"{arm['score']:.3f} (round {arm['round']})"]
        for name, arm in arms.items()
    ]
    header = ["run", "CPU s", "s", f"CPU over that of {next(iter(arms))}", "validation score"]
    return markdown_table(header, rows, 2)


if __name__ == "__main__":
    run(
        __file__,
        measured,
        tables,
        before={"type": Path, "help": f"checkout of {BEFORE}; without it there is no such row"},
        rounds={"type": int, "default": ROUNDS},
    )
