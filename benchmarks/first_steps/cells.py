"""The README's first command, on blood cells of PBC in a folder for each class: scores and CPU seconds of whole processes.

Run it as ``python -m benchmarks.first_steps.cells``; the data are in ``$GRANDROUNDS_DATA/pbc``. Each seed divides the images
anew between four sites; the command without a seed has the first.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands.run import cpu_seconds, grandrounds
from benchmarks.experiment import DATA, pooled, read_predictions
from benchmarks.measure import run, table
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.protocol.tasks import SINGLE

SEEDS = (1, 2, 3)
SCORES = ("accuracy", "balanced_accuracy", "auc_macro")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """A row for each seed."""
    cases = []
    with tempfile.TemporaryDirectory() as name:
        images = Path(name) / "PBC"
        with zipfile.ZipFile(DATA / "pbc" / "pbc_barcelona_96.zip") as archive:
            archive.extractall(images)
        for seed in SEEDS[:1] if options.quick else SEEDS:
            place = Path(name) / f"cells{seed}"
            os.environ["GRANDROUNDS_CACHE"] = str(place / "cache")
            sites = str(place / "sites")
            began = time.perf_counter()
            seconds = cpu_seconds(grandrounds("import", str(images), "--seed", str(seed), "--out", sites))
            seconds += cpu_seconds(grandrounds("simulate", "--sites-dir", sites, "--workspace", str(place / "run")))
            spent = {"cpu_seconds": round(seconds, 1), "seconds": round(time.perf_counter() - began, 1)}
            cases.append({"seed": seed, **spent, **scores(place / "run" / "results")})
    return {"cases": cases}


def scores(results: Path) -> dict[str, Any]:
    """Scores of the selected model on the test images of all sites, and the accuracy of their most frequent class."""
    found = sorted(results.glob("*/predictions_common.csv"))
    header = found[0].read_text(encoding="utf-8").splitlines()[0].split(",")
    classes = [name.removeprefix("probability_") for name in header if name.startswith("probability_")]
    test = pooled({path.parent.name: read_predictions(path, classes) for path in found})
    known = site_metrics(SINGLE, *test)
    majority = float(np.bincount(test.labels).max() / len(test.labels))
    return {"images": len(test.labels), "majority": majority, **{name: known[name] for name in SCORES}}


def tables(result: dict[str, Any]) -> str:
    columns = {
        "seed": "seed", "test images": "images", "accuracy": "accuracy", "balanced accuracy": "balanced_accuracy",
        "AUC": "auc_macro", "accuracy of the most frequent class": "majority", "CPU seconds": "cpu_seconds",
        "seconds": "seconds",
    }  # fmt: skip
    return table(columns, result["cases"], 3)


if __name__ == "__main__":
    run(__file__, measured, tables)
