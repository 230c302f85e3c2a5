"""The last weights beside an earlier commit: jobs that both have, on the embedded phantoms, with each commit's defaults.

git worktree add ../before 7931d40c
python -m benchmarks.weights.run --before ../before
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import ROOT, run
from benchmarks.tables import markdown_table

ROUNDS = 3
SEEDED = {"fed_align_cl": "executor.noise_source=seeded"}
"""Today's source of noise that repeats a run; the earlier commit's noise on weights had no other."""
WITHOUT_ROUNDS = {"statistics"}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    checkouts = {"before": options.before.absolute(), "today": ROOT}
    jobs = sorted(set.intersection(*({path.name for path in (one / "jobs").iterdir()} for one in checkouts.values())))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        for job in jobs[:1] if options.quick else jobs:
            runs = {when: pool.submit(_run, Path(folder) / when / job, one, job) for when, one in checkouts.items()}
            found[job] = {when: run.result() for when, run in runs.items()}
    return {"rounds": ROUNDS, "jobs": found}


def _run(workspace: Path, checkout: Path, job: str) -> dict[str, Any]:
    """Digests of the last weights of a run, by whose they are, and which round was selected by which score."""
    command = [sys.executable, "-m", "grandrounds.cli", "simulate", job, "--workspace", workspace, "--workers", "1"]
    command += [] if job in WITHOUT_ROUNDS else ["--set", f"controller.rounds={ROUNDS}"]
    if checkout == ROOT:
        command += ["--no-reference", *(["--set", SEEDED[job]] if job in SEEDED else [])]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "custom"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{job} of {checkout} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    summary = json.loads((workspace / "results" / "summary.json").read_text())
    selected = summary.get("selected") or {}
    return {"weights": _digests(workspace), **{key: selected.get(key) for key in ("round", "metric", "score")}}


def _digests(workspace: Path) -> dict[str, str]:
    """SHA-256 of the global model's last weights, or of each site's own model's."""
    results = workspace / "results"
    files = {str(path.relative_to(results)): path for path in results.rglob("last*.pt") if "flare" not in path.parts}
    if files:
        return {name: _digest(torch.load(path, weights_only=True)) for name, path in files.items()}
    last = {folder.parent.name: max(folder.glob("round_*.pt")) for folder in workspace.glob("state/*/*/state")}
    return {
        site: _digest(torch.load(path, weights_only=True)["content"].get("model", {}))
        for site, path in sorted(last.items())
    }


def _digest(weights: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def tables(result: dict[str, Any]) -> str:
    rows = []
    for job, runs in result["jobs"].items():
        before, today = runs["before"], runs["today"]
        models = before["weights"]
        equal = "equal bits" if models == today["weights"] else "differ"
        rows.append([f"`{job}`", len(models), equal if models else "no model", *map(_selected, (before, today))])
    return markdown_table(["job", "models", "last weights", "selected, 7931d40c", "selected today"], rows, 3)


def _selected(one: dict[str, Any]) -> str:
    return "—" if one["score"] is None else f"round {one['round']}, {one['metric']} {one['score']:.4f}"


if __name__ == "__main__":
    before = {"type": Path, "required": True, "help": "checkout of the earlier commit"}
    run(__file__, measured, tables, timed=False, before=before)
