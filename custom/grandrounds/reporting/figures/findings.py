"""What figures show, in a sentence for their captions, and the references that are drawn beside scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.record import ALWAYS
from grandrounds.reporting.model import Report
from grandrounds.reporting.run import Run


def called(cases: Cases, classes: Sequence[str]) -> str:
    """Which class is predicted most, beside its share of the labels."""
    called = np.bincount(cases.predicted, minlength=len(classes))
    most = int(called.argmax())
    share, true = called[most] / len(cases.labels), (cases.labels == most).mean()
    return f"{classes[most]} is predicted for {share:.0%} of the images; {true:.0%} are of it."


def extremes(report: Report, run: Run) -> str:
    """The classes that are separated best and worst."""
    pooled = report.scores[run.name].pooled
    scores = zip(run.classes, pooled.classes, strict=True) if pooled else ()
    areas = {name: found["auroc"] for name, found in scores if "auroc" in found and found["auroc"].enough}
    if not areas:
        return ""
    best, worst = max(areas, key=lambda name: areas[name].value), min(areas, key=lambda name: areas[name].value)
    if best == worst:
        return f"{best}: area {areas[best].value:.2f}; the dotted line is chance."
    return (
        f"{best} is separated best (area {areas[best].value:.2f}), {worst} worst ({areas[worst].value:.2f}); the dotted "
        "line is chance (0.50)."
    )


def confidence_found(cases: Cases) -> str:
    """Whether the model is more or less confident than it is right, over all images."""
    if cases.probabilities is None:
        return ""
    gap = float(cases.probabilities.max(axis=1).mean() - (cases.predicted == cases.labels).mean())
    word = "higher" if gap > 0 else "lower"
    return f"Confidence is on average {abs(gap):.2f} {word} than accuracy."


def constant_accuracy(report: Report, run: Run) -> tuple[str, float] | None:
    """Always predicting the most frequent class of all test images, and its accuracy; None where it is not known."""
    pooled = report.scores[run.name].pooled
    if pooled is None or pooled.majority is None:
        return None
    name = f"{ALWAYS}{pooled.majority}"
    return name, pooled.references[name]["accuracy"]


def constants(report: Report) -> dict[str, float]:
    """At each site the score of always predicting its most frequent class."""
    found: dict[str, float] = {}
    for scores in report.scores.values():
        for site, group in scores.sites.items():
            value = group.references.get(f"{ALWAYS}{group.majority}", {}).get(report.metric, math.nan)
            if not math.isnan(value):
                found.setdefault(site, value)
    return found
