"""What figures show, in a sentence for their captions, and the references that are drawn beside scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.score import ALWAYS, ScoreSheet
from grandrounds.reporting.format import format_number
from grandrounds.reporting.parts import format_estimate
from grandrounds.reporting.scores import RunScores


def called(cases: Cases, classes: Sequence[str]) -> str:
    """Which class is predicted most, beside its share of the labels."""
    called = np.bincount(cases.predicted, minlength=len(classes))
    most = int(called.argmax())
    share, true = called[most] / len(cases.labels), (cases.labels == most).mean()
    return f"{classes[most]} is predicted for {share:.0%} of the images; {true:.0%} are of it."


def extremes(pooled: ScoreSheet | None) -> str:
    """The classes that are separated best and worst."""
    classes = pooled.classes if pooled else {}
    areas = {
        name: found["auroc"].value for name, found in classes.items() if "auroc" in found and found["auroc"].enough
    }
    if not areas:
        return ""
    best, worst = max(areas, key=lambda name: areas[name]), min(areas, key=lambda name: areas[name])
    if best == worst:
        return f"{best}: area {areas[best]:.2f}; the dotted line is chance."
    return (
        f"{best} is separated best (area {areas[best]:.2f}), {worst} worst ({areas[worst]:.2f}); the dotted line is chance "
        "(0.50)."
    )


def confidence_found(cases: Cases) -> str:
    """Whether the model is more or less confident than it is right, over all images."""
    if cases.probabilities is None:
        return ""
    gap = float(cases.probabilities.max(axis=1).mean() - (cases.predicted == cases.labels).mean())
    word = "higher" if gap > 0 else "lower"
    return f"Confidence is on average {abs(gap):.2f} {word} than accuracy."


def of_classes(pooled: ScoreSheet | None, key: str) -> str:
    """A score of each class."""
    classes = pooled.classes if pooled else {}
    return "; ".join(f"{name} {format_estimate(found[key])}" for name, found in classes.items() if key in found)


def of_confidence(pooled: ScoreSheet | None, key: str) -> str:
    """A measure of calibration or risk."""
    return format_number(pooled.confidence.get(key) if pooled else None)


def constant_accuracy(pooled: ScoreSheet | None) -> tuple[str, float] | None:
    """Always predicting the most frequent class of all test images, and its accuracy; None where it is not known."""
    return (f"{ALWAYS}{pooled.majority}", pooled.always["accuracy"]) if pooled and pooled.always else None


def constants(runs: Iterable[RunScores], metric: str) -> dict[str, float]:
    """At each site the score of always predicting its most frequent class."""
    found: dict[str, float] = {}
    for scores in runs:
        for site, sheet in scores.sites.items():
            if metric in sheet.always:
                found.setdefault(site, sheet.always[metric])
    return found
