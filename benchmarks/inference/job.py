"""A whole job beside an earlier commit: CPU time of ``fedavg`` with what was its recommended preset.

The preset ``scratch`` has the options that ``recommended`` had in commit 7931d40c. Each form runs at the same time as that
commit, each on a core of its own. Both divide HAM10000 between ten sites by their own code and train in one process with one
thread; today's comparison with ridge, which the earlier commit did not make, is left out.

    git worktree add ../before 7931d40c
    python -m benchmarks.inference.job --before ../before
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.experiment import DATA
from benchmarks.measure import ROOT, run
from benchmarks.tables import markdown_table

DIVISION = ["--scheme", "sites", "--sites", "10", "--labelled", "0.25", "--seed", "4"]
"""The README's."""
FORMS = ("exact", "onnx")
ROUNDS = 20


def measured(options: argparse.Namespace) -> dict[str, Any]:
    rounds = 1 if options.quick else options.rounds
    before = options.before.absolute(), ["fedavg", "--preset", "recommended"]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        found = {}
        for form in FORMS:
            today = ROOT, ["fedavg", "--preset", "scratch", "--no-reference", "--set", f"executor.inference={form}"]
            arms = [
                pool.submit(_arm, Path(folder) / f"{form}-{core}", core, *arm, rounds)
                for core, arm in enumerate((before, today))
            ]
            found[form] = dict(zip(("before", "today"), (arm.result() for arm in arms), strict=True))
        return {"rounds": rounds, "pairs": found}


def _arm(folder: Path, core: int, checkout: Path, job: list[str], rounds: int) -> dict[str, Any]:
    """Seconds of one run, and what it has selected."""
    sites, workspace = folder / "sites", folder / "run"
    root = ["--root", str(DATA / "ham10000")]
    _command(folder, core, checkout, ["partition", "ham10000", *root, *DIVISION, "--out", str(sites)])
    wall = time.perf_counter()
    more = ["--workers", "1", "--set", f"controller.rounds={rounds}"]
    cpu = _command(
        folder, core, checkout, ["simulate", *job, "--sites-dir", str(sites), "--workspace", str(workspace), *more]
    )
    cost = {"wall": round(time.perf_counter() - wall, 1), "cpu": round(cpu, 1)}
    selected = json.loads((workspace / "results" / "summary.json").read_text())["selected"]
    return {**cost, "round": selected["round"], "score": round(selected["score"], 4)}


def _command(folder: Path, core: int, checkout: Path, arguments: list[str]) -> float:
    """Run a command of a checkout on one core; CPU seconds of its process and of those that this has waited for."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(checkout / "custom"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "grandrounds.cli", *arguments]
    printed = folder / "printed.txt"
    with printed.open("w") as stream:
        program = subprocess.Popen(command, cwd=folder, env=environment, stdout=stream, stderr=stream)
        os.sched_setaffinity(program.pid, {core})
        _, status, used = os.wait4(program.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command[1:])} failed:\n{printed.read_text()[-3000:]}")
    return used.ru_utime + used.ru_stime


def tables(result: dict[str, Any]) -> str:
    rows = [
        [
            form,
            pair["today"]["cpu"],
            pair["before"]["cpu"],
            pair["today"]["cpu"] / pair["before"]["cpu"],
            *(f"{pair[when]['score']:.3f} (round {pair[when]['round']})" for when in ("today", "before")),
        ]
        for form, pair in result["pairs"].items()
    ]
    header = ["form", "CPU s", "CPU s, 7931d40c", "today / 7931d40c", "selected: log likelihood", "7931d40c"]
    return markdown_table(header, rows, 2)


if __name__ == "__main__":
    run(
        __file__,
        measured,
        tables,
        before={"type": Path, "required": True, "help": "a checkout of commit 7931d40c"},
        rounds={"type": int, "default": ROUNDS},
    )
