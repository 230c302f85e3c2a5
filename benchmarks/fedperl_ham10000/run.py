"""The rows of FedPerl's Table 2 on HAM10000: ten hospitals from four real devices, and images at the server.

Runs start from weights trained on CIFAR-10 (``pretrain.py``), as the paper's start from ImageNet's. Every run resumes where
it was interrupted, and its result is a file of its own in ``results/``, written when it ends.

    python benchmarks/fedperl_ham10000/pretrain.py --cifar10 CIFAR10_NPZ --out runs/fedperl_ham10000/start.pt
    python benchmarks/fedperl_ham10000/run.py --root HAM10000_FOLDER --workspace runs/fedperl_ham10000 --workers 2
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.deployment.processes import machine, run_all

HERE = Path(__file__).parent
RESULTS = HERE / "results"
REPORTED = ("ece", "mce", "risk", "aurc")
CONFIGURATION = json.loads((HERE / "configuration.json").read_text())
RUNS: dict[str, dict[str, Any]] = {**CONFIGURATION["methods"], **CONFIGURATION["ablations"]}


def main() -> None:
    """Run what has no result yet, a few runs at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of HAM10000")
    parser.add_argument("--workspace", type=Path, default=Path("runs/fedperl_ham10000"))
    parser.add_argument("--workers", type=int, default=1, help="runs at once; each uses one CPU thread")
    parser.add_argument("--only", help="method:seed, run in this process")
    arguments = parser.parse_args()
    if arguments.only:
        method, _, seed = arguments.only.partition(":")
        run(method, int(seed), arguments.root, arguments.workspace)
        return
    waiting = [
        f"{method}:{seed}"
        for seed in CONFIGURATION["seeds"]
        for method in RUNS
        if method in CONFIGURATION["methods"] or seed in CONFIGURATION["ablation_seeds"]
        if not (RESULTS / f"{method}_{seed}.json").exists()
    ]
    command = [sys.executable, __file__, "--root", str(arguments.root), "--workspace", str(arguments.workspace)]
    run_all(([*command, "--only", task] for task in waiting), arguments.workers)


def run(method: str, seed: int, root: Path, workspace: Path) -> None:
    """Run one method with one seed and write its result."""
    os.environ.setdefault("GRANDROUNDS_CACHE", str((workspace / "cache").absolute()))
    from grandrounds.data.partition.make import make_partition
    from grandrounds.deployment.jobs import load_job, with_options
    from grandrounds.deployment.simulate import choose_sites, simulate

    partition = workspace / f"sites_{seed}"
    description = make_partition(root=root, out=partition, seed=seed, **CONFIGURATION["partition"])
    sites, problem = choose_sites(None, partition)
    entry = RUNS[method]
    schedule = CONFIGURATION["local" if entry["job"].startswith("local") else "federated"]
    weights = f"problem.weights={(workspace / 'start.pt').absolute()}"
    job = load_job(entry["job"])
    job.options("problem").update(problem)
    job = with_options(
        job, [*CONFIGURATION["common"], weights, *schedule, *entry["options"], f"controller.seed={seed}"]
    )
    place = workspace / f"{method}_{seed}"
    summary = simulate(job, place, sites, sites_dir=partition)
    RESULTS.mkdir(exist_ok=True)
    result = {
        "method": method,
        "seed": seed,
        "selected": summary["selected"],
        "test": summary["test"],
        "predictions": _predictions(place, description["classes"]),
        "pseudo_labels": _pseudo_labels(place),
        "peers": _notes(summary, "peers"),
        "candidates": _notes(summary, "candidates"),
        "peer_validation": _notes(summary, "peer_validation"),
        "similarity": _similarity(place),
        "devices": {site: _device(description["sites"][site]["sources"]) for site in sites},
        "classes": description["classes"],
        "manifests": {site: content["sha256"] for site, content in description["sites"].items()},
        "bytes": summary["bytes"],
        "seconds": summary["seconds"],
        "options": {part: job.options(part) for part in ("controller", "executor")} | {"weights": _digest(workspace)},
        "versions": summary["versions"],
        "machine": machine(),
    }
    (RESULTS / f"{method}_{seed}.json").write_text(json.dumps(result, indent=1) + "\n")


def _predictions(place: Path, classes: list[str]) -> dict[str, dict[str, Any]]:
    """Calibration, risk and confusion matrix of each site's test predictions, by model (``own``, ``common``) and site."""
    from grandrounds.evaluation.external import scores
    from grandrounds.evaluation.metrics import confusion_matrix

    found: dict[str, dict[str, Any]] = {}
    for path in sorted((place / "state").glob("*/*/predictions_*.csv")):
        with path.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        labels = np.array([classes.index(row["label"]) for row in rows])
        probabilities = np.array([[float(row[f"probability_{name}"]) for name in classes] for row in rows])
        probabilities /= probabilities.sum(axis=1, keepdims=True)  # they were written with six digits
        confusion = confusion_matrix(labels, probabilities.argmax(axis=1), len(classes)).tolist()
        kept = {name: round(value, 6) for name, value in scores(labels, probabilities).items() if name in REPORTED}
        found.setdefault(path.stem.removeprefix("predictions_"), {})[path.parent.name] = {
            **kept,
            "confusion": confusion,
        }
    return found


def _notes(summary: dict[str, Any], name: str) -> dict[int, Any]:
    return {entry["round"]: entry[name] for entry in summary["rounds"] if entry.get(name)}


def _similarity(place: Path) -> dict[int, Any]:
    """Every tenth round's similarity matrix, with the sites of its rows and the range of unscaled cosines."""
    from grandrounds.federation.server.record import read_events

    events = [event for event in read_events(place / "results") if event["event"] == "similarity"]
    return {
        event["round"]: {name: event[name] for name in ("sites", "matrix", "raw_cosines")}
        for event in events
        if event["round"] % 10 == 0
    }


def _digest(workspace: Path) -> str:
    return hashlib.sha256((workspace / "start.pt").read_bytes()).hexdigest()


def _pseudo_labels(place: Path) -> dict[str, list[float | None]]:
    """Share of accepted pseudo-labels and their accuracy, as means over the participants of each round."""
    from grandrounds.federation.server.record import read_events

    rounds: dict[int, list[dict[str, float]]] = {}
    for event in read_events(place / "results"):
        if event["event"] == "answer" and "accepted" in event["metrics"]:
            rounds.setdefault(event["round"], []).append(event["metrics"])
    means: dict[str, list[float | None]] = {}
    for name in ("accepted", "pseudo_label_accuracy"):
        for _, metrics in sorted(rounds.items()):
            known = [m[name] for m in metrics if name in m]
            means.setdefault(name, []).append(round(sum(known) / len(known), 4) if known else None)
    return means


def _device(sources: dict[str, int]) -> str:
    return max(sources, key=lambda name: sources[name]).removeprefix("HAM10000/")


if __name__ == "__main__":
    main()
