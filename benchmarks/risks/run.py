"""Risks of a finished run of the default: log loss, calibration and triage, beside the probabilities that decide.

Scores are of all sites' test images together. Of sites with sources the head of the others is tested at each source: it is
solved from the sums of the sites without it, as ``grandrounds`` does where a site leaves.

    python -m benchmarks.risks.run --runs runs/ham/run --sites-dirs runs/ham/sites
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
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
from grandrounds.methods.ridge.leave import leave
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.tasks import SINGLE
from grandrounds.reporting.run import scores_of
from grandrounds.reporting.runs import read_run

MANY: dict[str, Any] = {"type": Path, "nargs": "+", "required": True}
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
OF_SOURCES = {
    "data": "data",
    "source left out": "source",
    "sites": "sites",
    "test images": "images",
    "AUC with it": "with.auc",
    "without": "without.auc",
    "balanced accuracy with it": "with.balanced_accuracy",
    "without ": "without.balanced_accuracy",
    "calibration error with it": "with.ece",
    "without  ": "without.ece",
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
    rows, sources = [], []
    for place, folder in zip(options.runs, options.sites_dirs, strict=True):
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
        sources += [{"data": own["data"], **row} for row in left_out(place, gr.Sites.read(folder))]
    return {"rows": rows, "sources": sources}


def left_out(place: Path, sites: gr.Sites) -> list[dict[str, Any]]:
    """Scores at the sites of each source of the run's head and of that of the others; a site is of its commonest source."""
    counted = {name: sites.description["sites"][name]["sources"] for name in sites.names}
    of_sites = {name: max(images, key=images.__getitem__) for name, images in counted.items()}
    known = natural_sorted({*of_sites.values()})
    if len(known) < 2:
        return []
    rows = []
    for source in known:
        names = tuple(name for name, own in of_sites.items() if own == source)
        with TemporaryDirectory() as folder:
            leave(place, names, Path(folder) / "others")
            both = {"with": place, "without": Path(folder) / "others"}
            tested = {name: at(model, gr.Sites(names, sites.folder)) for name, model in both.items()}
        rows.append({"source": source, "sites": len(names), "images": tested["with"]["images"], **tested})
    return rows


def at(model: Path, place: gr.Sites) -> dict[str, float]:
    """Scores of a run's model on the test images of some of its sites together."""
    found = gr.evaluate(model, place, allow_overlap=True).place.sites.values()
    labels, risks, decisions = (
        np.concatenate([getattr(site, part) for site in found]) for part in ("labels", "probabilities", "decisions")
    )
    known, decided = scored(labels, risks), site_metrics(SINGLE, labels, risks, SINGLE.decide(decisions))
    balanced = {"images": len(labels), "balanced_accuracy": decided["balanced_accuracy"]}
    return {**balanced, **{name: known[name] for name in ("auc", "log_loss", "ece")}}


def tables(result: dict[str, Any]) -> str:
    """Scores of each row, and the bins of risks of each run."""
    parts = [table(SHOWN, result["rows"], 3)]
    titles = {"mean probability of the prediction": "confidence", "share that is right": "right", "images": "images"}
    for row in result["rows"]:
        if row["of"] == "risk":
            bins = [dict(zip(("confidence", "right", "images"), point, strict=True)) for point in row["reliability"]]
            parts += [f"**{row['data']}, division {row['seed']}: reliability of risks**", table(titles, bins, 2)]
    return "\n\n".join([*parts, "**Each source left out**", table(OF_SOURCES, result["sources"], 3)])


if __name__ == "__main__":
    run(__file__, measured, tables, timed=False, runs=MANY, sites_dirs=MANY)
