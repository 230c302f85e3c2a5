"""Scores with 95 % intervals: of each class, of all classes together, areas under curves, and means over sites.

Means over classes are over those with ``MIN_CASES`` cases, and need two of them: the sensitivity of one class is no balanced
accuracy, and a class of two images would decide it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.auc import weighted_areas
from grandrounds.evaluation.bootstrap import (
    MIN_CASES,
    RESAMPLES,
    Cases,
    Estimate,
    resampled_confusions,
    resampled_weights,
)
from grandrounds.evaluation.intervals import (
    Interval,
    auroc_interval,
    combined,
    correlations,
    effective_size,
    f1_interval,
    wilson,
)
from grandrounds.evaluation.metrics import (
    chance_confusion,
    confusion_class_scores,
    confusion_scores,
    majority_confusion,
)

AUC_RESAMPLES = 200
MEANS = {
    "balanced_accuracy": ("sensitivity", False),
    "recall_weighted": ("sensitivity", True),
    "precision_macro": ("precision", False),
    "precision_weighted": ("precision", True),
    "f1_macro": ("f1", False),
    "f1_weighted": ("f1", True),
}
"""Means over classes: of which score, and whether weighted by the classes' images."""

Array = NDArray[np.float64]


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

    @property
    def counted(self) -> NDArray[np.bool_]:
        """The classes with enough cases, over which means are taken."""
        return (self.positives >= MIN_CASES) & np.isfinite(self.correct)


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
    )


def class_estimates(counts: ClassCounts) -> list[dict[str, Estimate]]:
    """Precision (zero where the class is never predicted), sensitivity, F1 and specificity of each class."""
    columns = _class_columns(counts)
    return [
        {
            name: Estimate(
                float(values[number]),
                float(interval.low[number]),
                float(interval.high[number]),
                int((counts.negatives if name == "specificity" else counts.positives)[number]),
            )
            for name, (values, interval) in columns.items()
        }
        for number in range(len(counts.correct))
    ]


def score_estimates(counts: ClassCounts, related: Mapping[str, Array] | None = None) -> dict[str, Estimate]:
    """Accuracy, and means over the classes with enough cases, which need two such classes.

    ``related`` are the correlations of the classes' scores, as :func:`class_correlations` gives them.
    """
    accuracy = counts.right / counts.images if counts.images else math.nan
    low, high = (float(end) for end in wilson(accuracy, counts.sizes["accuracy"]))
    found = {"accuracy": Estimate(accuracy, low, high, counts.cases)}
    # How often a yes-or-no question is answered correctly is a linear function of the accuracy.
    value, lower, upper = (1 - 2 * (1 - end) / len(counts.correct) for end in (accuracy, low, high))
    found["accuracy_one_vs_rest"] = Estimate(value, lower, upper, counts.cases)
    counted, columns = counts.counted, _class_columns(counts)
    weights = counts.correct + counts.missed
    for name, (score, weighted) in MEANS.items():
        if counted.sum() < 2:
            found[name] = Estimate(math.nan, math.nan, math.nan, int(np.sort(counts.positives)[-2]))
            continue
        values, interval = columns[score]
        correlation = related[score][np.ix_(counted, counted)] if related else None
        parts = Interval(interval.low[counted], interval.high[counted])
        of_class = weights[counted] if weighted else np.ones(int(counted.sum()))
        behind = int(counts.positives[counted].min())
        found[name] = Estimate(*combined(values[counted], parts, of_class, correlation), behind)
    return found


def reference_scores(counts: ClassCounts, classes: Sequence[str]) -> dict[str, dict[str, float]]:
    """What a model must exceed: the scores of always predicting the most frequent class, and of guessing.

    Returns:
        By ``always CLASS`` and ``chance``, the scores of :func:`score_estimates`, and ``auroc_macro``. The first is left out
        where it is not known which class is the most frequent.
    """
    true = np.nan_to_num(counts.correct + counts.missed)
    largest = int(np.argmax(true))
    made = {"chance": chance_confusion(true)}
    if true[largest] > 0 and true[largest] >= counts.images - true.sum():
        made = {f"always {classes[largest]}": majority_confusion(true), **made}
    found = {}
    for name, confusion in made.items():
        scores = {key: float(value) for key, value in confusion_scores(confusion, counts.counted).items()}
        accuracy = 1 / len(true) if name == "chance" else float(true[largest] / counts.images)
        means = {key: scores[key] for key in MEANS if counts.counted.sum() > 1}
        one_vs_rest = 1 - 2 * (1 - accuracy) / len(true)
        found[name] = {"accuracy": accuracy, "accuracy_one_vs_rest": one_vs_rest, **means, "auroc_macro": 0.5}
    return found


def class_correlations(cases: Cases, generator: np.random.Generator, resamples: int = RESAMPLES) -> dict[str, Array]:
    """Correlations of the classes' sensitivity, precision and F1 over bootstrap samples, shape ``(classes, classes)``."""
    draws = confusion_class_scores(resampled_confusions(cases, generator, resamples))
    return {name: correlations(draws[name]) for name in ("sensitivity", "precision", "f1")}


def mean_over_sites(sites: Sequence[Mapping[str, Estimate]]) -> dict[str, Estimate]:
    """Unweighted means over the sites that have a score; the interval covers other patients of these sites, not other sites.

    Without intervals of the sites the mean has none.
    """
    found: dict[str, list[Estimate]] = {}
    for scores in sites:
        for name, estimate in scores.items():
            if estimate.enough and not math.isnan(estimate.value):
                found.setdefault(name, []).append(estimate)
    means = {}
    for name, known in found.items():
        values, low, high, cases = (np.array(column) for column in zip(*(one[:4] for one in known), strict=True))
        means[name] = Estimate(*combined(values, Interval(low, high), np.ones(len(known))), int(cases.sum()))
    return means


def auc_estimates(cases: Cases) -> list[dict[str, Estimate]]:
    """AUROC and average precision of each class against the others; both rest on the smaller side's cases.

    The interval of average precision, a mean over the positive images, is Wilson's for their number (Boyd, Eng and Page,
    ECML 2013, "binomial interval").

    Raises:
        ValueError: if there are no probabilities.
    """
    if cases.probabilities is None:
        raise ValueError("an area needs probabilities, and only the predicted classes are known")
    once = np.ones((1, len(cases.labels)))
    found = []
    for number, behind in enumerate(np.minimum(cases.positives(), cases.negatives()).tolist()):
        positive, scores = cases.labels == number, cases.probabilities[:, number]
        precision = float(weighted_areas(positive, scores, once).average_precision[0])
        size = effective_size(positive[positive], cases.groups[positive])
        low, high = (float(end) if behind else math.nan for end in wilson(precision, size))
        found.append(
            {
                "auroc": Estimate(*auroc_interval(positive, scores, cases.groups), behind),
                "average_precision": Estimate(precision, low, high, behind),
            }
        )
    return found


def macro_auroc(cases: Cases, areas: Sequence[Mapping[str, Estimate]], generator: np.random.Generator) -> Estimate:
    """Mean area over the classes with enough cases, from :func:`auc_estimates`; it rests on the rarest of them."""
    known = [number for number, found in enumerate(areas) if found["auroc"].enough]
    if not known or cases.probabilities is None:
        return Estimate(math.nan, math.nan, math.nan, 0)
    weights = resampled_weights(cases, generator, AUC_RESAMPLES)
    draws = [weighted_areas(cases.labels == n, cases.probabilities[:, n], weights).auroc for n in known]
    values, low, high, behind = (
        np.array(column) for column in zip(*(areas[n]["auroc"][:4] for n in known), strict=True)
    )
    related = correlations(np.stack(draws, axis=1))
    return Estimate(*combined(values, Interval(low, high), np.ones(len(known)), related), int(behind.min()))


def _class_columns(counts: ClassCounts) -> dict[str, tuple[Array, Interval]]:
    """The four scores of the classes with their intervals."""
    correct, true, sizes = counts.correct, counts.correct + counts.missed, counts.sizes
    others = counts.images - true
    with np.errstate(divide="ignore", invalid="ignore"):
        sensitivity, jaccard = correct / true, correct / (true + counts.false)
        precision = np.where(true > 0, np.nan_to_num(correct / (correct + counts.false)), np.nan)
        specificity = (others - counts.false) / others
    precision = np.where(np.isnan(counts.false), np.nan, precision)
    jaccard = np.where(true > 0, jaccard, np.nan)
    return {
        "precision": (precision, wilson(precision, sizes["precision"])),
        "sensitivity": (sensitivity, wilson(sensitivity, sizes["sensitivity"])),
        "f1": (2 * jaccard / (1 + jaccard), f1_interval(jaccard, sizes["f1"])),
        "specificity": (specificity, wilson(specificity, sizes["specificity"])),
    }
