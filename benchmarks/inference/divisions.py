"""What another form of frozen layers changes in ``ridge``: decisions and scores of the test images of five divisions.

Blood cells of PBC (75 of each class, 64 pixels) are divided anew between four sites; each form trains on each division.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands.run import cpu_seconds, grandrounds
from benchmarks.inference.command import draw, in_form
from benchmarks.measure import run, table
from grandrounds.models.inference.forward import EXACT, FORMS

DIVISIONS, SIDE, SITES, OF_A_CLASS = 5, 64, 4, 75


def measured(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(3) as pool:
        folder = Path(name)
        draw(folder / "images", 20 if options.quick else OF_A_CLASS)
        seeds = range(1, 2 if options.quick else DIVISIONS + 1)
        found = [case for cases in pool.map(partial(_division, folder), seeds) for case in cases]
    return {"divisions": found, "paired": [_paired(form, found) for form in FORMS if form != EXACT]}


def _division(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Scores of each form on one division, and decisions that are not those of the exact form."""
    sites = str(folder / f"division{seed}")
    cpu_seconds(grandrounds("import", str(folder / "images"), "--out", sites, "--seed", str(seed)))
    cases: list[dict[str, Any]] = []
    for form in FORMS:
        place = folder / f"{form}{seed}"
        size = ["--preset", "recommended", "--image-size", str(SIDE), *in_form(form)]
        cpu_seconds(grandrounds("simulate", "ridge", "--sites-dir", sites, "--workspace", str(place), *size))
        labels, decided = _decisions(place / "results")
        right = decided == labels
        if form == EXACT:
            expected = decided
        cases.append(
            {
                "division": seed,
                "form": form,
                "images": len(labels),
                "changed": int((decided != expected).sum()),
                "accuracy": float(right.mean()),
                "balanced_accuracy": float(np.mean([right[labels == label].mean() for label in np.unique(labels)])),
            }
        )
    return cases


def _decisions(results: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels and decisions of the test images of all sites."""
    rows: list[list[str]] = []
    for number in range(1, SITES + 1):
        with (results / f"site-{number}" / "predictions_common.csv").open(newline="") as stream:
            rows += [[row["label"], row["predicted"]] for row in csv.DictReader(stream)]
    labels, decided = np.array(rows).T
    return labels, decided


def _paired(form: str, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Changed decisions of all divisions, and the mean and largest difference of scores of a division."""
    pairs = [
        (one, next(case for case in cases if case["division"] == one["division"] and case["form"] == EXACT))
        for one in cases
        if one["form"] == form
    ]
    found: dict[str, Any] = {"form": form, "images": sum(one["images"] for one, _ in pairs)}
    found["changed"] = sum(one["changed"] for one, _ in pairs)
    for score in ("accuracy", "balanced_accuracy"):
        differences = [one[score] - exact[score] for one, exact in pairs]
        found[score] = {"mean": float(np.mean(differences)), "largest": max(differences, key=abs)}
    return found


def tables(result: dict[str, Any]) -> str:
    scores = {"form": "form", "test images": "images", "changed decisions": "changed"}
    scores |= {"accuracy, mean difference": "accuracy.mean", "largest": "accuracy.largest"}
    scores |= {
        "balanced, mean difference": "balanced_accuracy.mean",
        "largest of a division": "balanced_accuracy.largest",
    }
    return table(scores, result["paired"], 4)


if __name__ == "__main__":
    run(__file__, measured, tables, timed=False)
