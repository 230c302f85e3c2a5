"""Counts of predictions by class, with the cases behind them: from predictions, or added up from what sites release."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.counts import HIDDEN, SiteCounts
from grandrounds.evaluation.intervals import Array, effective_size


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """What the scores of the predicted class are computed from; arrays have shape ``(classes,)``, NaN where unknown.

    Attributes:
        correct: images of the class that are predicted as it.
        missed: images of the class that are predicted as another.
        false: images of others that are predicted as it.
        images: all images.
        right: all correct predictions.
        positives: cases with an image of the class.
        negatives: cases with an image of another class.
        cases: all cases.
        sizes: by score, the number of independent images that its denominator is worth; of ``accuracy`` one number.
        scored: the classes with scores of their own.
    """

    correct: Array
    missed: Array
    false: Array
    images: float
    right: float
    positives: NDArray[np.int64]
    negatives: NDArray[np.int64]
    cases: int
    sizes: Mapping[str, Array]
    scored: tuple[int, ...]

    @property
    def occurs(self) -> NDArray[np.bool_]:
        """The classes with known images, over which means are taken."""
        return np.nan_to_num(self.correct + self.missed) > 0


def counts_of(cases: Cases) -> ClassCounts:
    """Count the predictions, and the cases behind them."""
    confusion = cases.confusion()
    correct = np.diagonal(confusion).astype(np.float64)
    right, numbers = cases.predicted == cases.labels, range(cases.classes)
    members = [(cases.labels == number, cases.predicted == number) for number in numbers]
    sizes = {
        "sensitivity": [effective_size(called[true], cases.groups[true]) for true, called in members],
        "specificity": [effective_size(called[~true], cases.groups[~true]) for true, called in members],
        "precision": [effective_size(true[called], cases.groups[called]) for true, called in members],
        "f1": [effective_size((t & c)[t | c], cases.groups[t | c]) for t, c in members],
        "accuracy": effective_size(right, cases.groups),
    }
    return ClassCounts(
        correct,
        confusion.sum(axis=1) - correct,
        confusion.sum(axis=0) - correct,
        len(cases.labels),
        float(right.sum()),
        cases.positives(),
        cases.negatives(),
        cases.count,
        {name: np.asarray(size, np.float64) for name, size in sizes.items()},
        cases.rows,
    )


def pooled_counts(
    sites: Sequence[SiteCounts],
    question: int,
    scored: tuple[int, ...],
    images: float = math.nan,
    right: float = math.nan,
) -> ClassCounts:
    """The counts of a question of several sites together.

    Args:
        sites: at least one.
        question: its number.
        scored: the classes with scores of their own.
        images: of all sites, hidden ones included; NaN for those that are shown.
        right: correct predictions among them; NaN for those that are shown.

    Returns:
        Counts of each class over the sites that show it; not a number, with ``HIDDEN`` positives, where none does. ``false``
        is known only where every site shows all of the class. Where all classes are hidden, images stand for the cases.
    """
    shown = np.stack([site.images[question] for site in sites])
    patients = np.stack([site.patients[question] for site in sites]).clip(min=0).sum(axis=0)
    totals = np.where(shown == HIDDEN, 0, shown).sum(axis=0).astype(np.float64)
    unknown = (shown[:, :, 0] == HIDDEN).all(axis=0)
    totals[unknown, :2] = np.nan
    totals[(shown == HIDDEN).any(axis=(0, 2)), 2] = np.nan
    correct, missed, false = totals.T
    positives = np.where(unknown, HIDDEN, patients[:, 0] + patients[:, 1])
    cases = int(positives.clip(min=0).sum())
    negatives = np.maximum(cases - positives.clip(min=0), 0)
    # Images of a patient are taken to agree: no fewer independent images than patients can be behind a count.
    true, called, union = (patients[:, columns].sum(axis=1) for columns in ([0, 1], [0, 2], [0, 1, 2]))
    known = float(np.nansum(correct + missed))
    images = known if math.isnan(images) else images
    if unknown.all():
        cases, known = int(images), images
    sizes = {
        "sensitivity": true,
        "specificity": negatives,
        "precision": called,
        "f1": union,
        "accuracy": images * max(cases, 0) / max(known, 1.0),
    }
    return ClassCounts(
        correct,
        missed,
        false,
        images,
        float(np.nansum(correct)) if math.isnan(right) else right,
        positives,
        negatives,
        cases,
        {name: np.asarray(size, np.float64) for name, size in sizes.items()},
        scored,
    )
