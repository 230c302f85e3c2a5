"""Risks of a finished run of the default: log loss, calibration and triage, beside the probabilities that decide.

Scores are of all sites' test images together.

    python -m benchmarks.risks.run --runs runs/ham/run
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import grandrounds as gr
from benchmarks.measure import run, table
from grandrounds.evaluation.confidence import (
    calibration_errors,
    coverage_at_risk,
    reliability_points,
    risk_coverage,
    top_confidence,
)
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.evaluation.within import WITHIN
from grandrounds.protocol.tasks import SINGLE
from grandrounds.reporting.run import scores_of
from grandrounds.reporting.runs import read_run

TRIAGE = (5, 10)
"""Percent of predictions that may be wrong among those that are not declined."""
SHOWN = {
    "data": "data",
    "pixels": "side",
    "seed": "seed",
    "of": "of",
    "AUC": "auc",
    "AUC within sites": "auc_within",
    "log loss": "log_loss",
    "calibration error": "ece",
    "coverage at 5 % error": "coverage.5",
    "at 10 %": "coverage.10",
}


def predicted(found: gr.Run) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]:
    """Labels of all sites' test images, and their risks and the probabilities that decide."""
    frame = found.predictions
    labels = np.array([found.classes.index(label) for label in frame["label"]])
    risks = frame[[f"probability_{name}" for name in found.classes]].to_numpy(np.float64)
    (terms,) = (value for name, value in found.model.state_dict().items() if name.endswith(".risk"))
    factor, addend = terms.view(torch.float32).double().numpy()
    logits = torch.from_numpy((np.log(np.maximum(risks, 1e-30)) - addend) / factor)
    return labels, {"risk": risks, "decision": SINGLE.probabilities(logits).numpy()}


def scored(labels: NDArray[np.int64], probabilities: NDArray[np.float64]) -> dict[str, Any]:
    """Scores of probabilities, with the bins of reliability."""
    confidence, correct = top_confidence(labels, probabilities)
    points, curve = reliability_points(confidence, correct), risk_coverage(confidence, correct)
    scores = site_metrics(SINGLE, labels, probabilities)
    return {
        "auc": scores["auc_macro"],
        "log_loss": scores["log_loss"],
        "ece": calibration_errors(points)[0],
        "coverage": {str(percent): coverage_at_risk(curve, percent / 100) for percent in TRIAGE},
        "reliability": [[round(point.confidence, 4), round(point.accuracy, 4), point.n] for point in points],
    }


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Both kinds of probabilities of each run."""
    rows: list[dict[str, Any]] = []
    for place in options.runs:
        found = gr.Run(place)
        labels, kinds = predicted(found)
        pooled = scores_of(read_run(place, "run")).pooled
        problem = found.summary["configuration"]["problem"]
        own = {
            "data": problem["dataset"],
            "side": problem["image_size"],
            "seed": found.summary["configuration"]["seed"],
        }
        within = {"risk": pooled.best(WITHIN).value} if pooled else {}
        for kind, values in kinds.items():
            rows.append({**own, "of": kind, **scored(labels, values), "auc_within": within.get(kind)})
    return {"rows": rows}


def tables(result: dict[str, Any]) -> str:
    """Scores of each row, and the bins of risks of each run."""
    parts = [table(SHOWN, result["rows"], 3)]
    titles = {"mean probability of the prediction": "confidence", "share that is right": "right", "images": "images"}
    for row in result["rows"]:
        if row["of"] == "risk":
            bins = [dict(zip(("confidence", "right", "images"), one, strict=True)) for one in row["reliability"]]
            parts += [f"**{row['data']}, division {row['seed']}: reliability of risks**", table(titles, bins, 2)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    run(__file__, measured, tables, timed=False, runs={"type": Path, "nargs": "+", "required": True})
