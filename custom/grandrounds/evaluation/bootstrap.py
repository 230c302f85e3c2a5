"""Predictions of test images by independent case, and scores with an interval by bootstrap.

A case is a patient or lesion; a bootstrap sample draws cases, never single images of one. A score is shown where at least
``MIN_CASES`` cases carry it: those of the class for sensitivity, precision and F1, the others for specificity, both for an
area under a curve, all for a score of all classes. With fewer, the interval would cover most of [0, 1] anyway (the exact
95 % interval of 9 of 9 is [0.66, 1]).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least
from grandrounds.evaluation.auc import Areas, weighted_areas
from grandrounds.evaluation.metrics import confusion_class_scores, confusion_matrix, confusion_scores, mean_of_known

MIN_CASES = 10
CONFIDENCE = 0.95
RESAMPLES = 1000
AUC_RESAMPLES = 200


@dataclass(frozen=True, eq=False)
class Cases:
    """Predictions for the test images of one or more sites.

    Attributes:
        labels: true classes, int64, shape ``(n,)``.
        predicted: predicted classes, int64, shape ``(n,)``.
        groups: number of the patient or lesion that each image is of, int64, shape ``(n,)``, in [0, cases).
        probabilities: of the classes, float64, shape ``(n, classes)``; None where only the predicted class is known.
        classes: how many classes there are.
    """

    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    groups: NDArray[np.int64]
    probabilities: NDArray[np.float64] | None
    classes: int

    @property
    def count(self) -> int:
        """How many independent cases there are."""
        return len(np.unique(self.groups))

    def confusion(self) -> NDArray[np.int64]:
        """Counts of images, shape ``(classes, classes)``: row true class, column predicted class."""
        return confusion_matrix(self.labels, self.predicted, self.classes)

    def positives(self) -> NDArray[np.int64]:
        """How many cases have an image of each class, shape ``(classes,)``."""
        pairs = np.unique(np.stack([self.groups, self.labels], axis=1), axis=0)
        return np.bincount(pairs[:, 1], minlength=self.classes).astype(np.int64)

    def negatives(self) -> NDArray[np.int64]:
        """How many cases have an image of another class than each, shape ``(classes,)``."""
        counts = [len(np.unique(self.groups[self.labels != number])) for number in range(self.classes)]
        return np.array(counts, np.int64)


def cases_of(
    labels: NDArray[np.int64], probabilities: NDArray[np.float64], groups: Sequence[str] | None = None
) -> Cases:
    """Cases from probabilities, shape ``(n, classes)``; of equal ones the lower class is the prediction.

    Without ``groups``, the patient or lesion of each image, each image is a case.

    Raises:
        ValueError: if the lengths differ.
    """
    named = np.arange(len(labels)) if groups is None else np.unique(np.array(groups, np.str_), return_inverse=True)[1]
    if not len(labels) == len(probabilities) == len(named):
        raise ValueError(
            f"expected as many probabilities and groups as labels ({len(labels)}), got {len(probabilities)} and "
            f"{len(named)}"
        )
    predicted = probabilities.argmax(axis=1).astype(np.int64)
    return Cases(labels, predicted, named.astype(np.int64), probabilities, probabilities.shape[1])


def cases_from_confusion(confusion: NDArray[np.int64]) -> Cases:
    """Cases from counts alone, each image a case: enough for scores of the predicted class.

    Example:
        >>> cases_from_confusion(np.array([[1, 0], [2, 0]])).labels
        array([0, 1, 1])
    """
    cells = np.repeat(np.arange(confusion.size), confusion.ravel())
    labels, predicted = np.divmod(cells, len(confusion))
    return Cases(labels, predicted, np.arange(len(cells)), None, len(confusion))


def joined(parts: Sequence[Cases]) -> Cases:
    """The cases of several sites together; cases of different sites are different.

    Probabilities are None if one site has none. There must be a site (:class:`ValueError`).
    """
    if not parts:
        raise ValueError("there are no sites")
    starts = np.cumsum([0, *(1 + int(part.groups.max(initial=-1)) for part in parts[:-1])])
    known = [part.probabilities for part in parts if part.probabilities is not None]
    return Cases(
        labels=np.concatenate([part.labels for part in parts]),
        predicted=np.concatenate([part.predicted for part in parts]),
        groups=np.concatenate([part.groups + start for part, start in zip(parts, starts, strict=True)]),
        probabilities=np.concatenate(known) if len(known) == len(parts) else None,
        classes=parts[0].classes,
    )


class Estimate(NamedTuple):
    """A score, the ends of its 95 % interval (each NaN where not defined), and how many independent cases carry it."""

    value: float
    low: float
    high: float
    cases: int

    @property
    def enough(self) -> bool:
        """Whether the score may be shown."""
        return self.cases >= MIN_CASES

    def to_json(self) -> dict[str, float | int | None]:
        """Plain values: null for what is not defined, and nothing but the count where there are too few cases."""
        shown = [None if math.isnan(part) or not self.enough else round(part, 6) for part in self[:3]]
        return {**dict(zip(("value", "low", "high"), shown, strict=True)), "cases": self.cases}


def resampled_weights(cases: Cases, generator: np.random.Generator, resamples: int = RESAMPLES) -> NDArray[np.float32]:
    """How often each image is in each bootstrap sample of the cases, shape ``(resamples, n)``.

    A bootstrap sample draws as many cases as there are, with replacement; all images of a case come together.
    """
    counts, index = _draws(cases, generator, resamples)
    return counts[:, index].astype(np.float32)


def resampled_confusions(
    cases: Cases, generator: np.random.Generator, resamples: int = RESAMPLES
) -> NDArray[np.float64]:
    """Confusion matrices of bootstrap samples of the cases, shape ``(resamples, classes, classes)``.

    Those of several sites may be added: each site keeps its number of cases.
    """
    counts, index = _draws(cases, generator, resamples)
    cells = np.zeros((counts.shape[1], cases.classes**2))
    np.add.at(cells, (index, cases.labels * cases.classes + cases.predicted), 1)
    return (counts @ cells).reshape(resamples, cases.classes, cases.classes)


def interval_of(draws: NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % percentile interval of a score's bootstrap draws, shape ``(resamples,)``.

    Draws in which the score is not defined do not count; if these are more than half, both ends are NaN.
    """
    defined = draws[~np.isnan(draws)]
    if 2 * len(defined) < max(len(draws), 1):
        return math.nan, math.nan
    low, high = np.quantile(defined, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def score_estimates(confusion: NDArray[np.int64], resampled: NDArray[np.float64], cases: int) -> dict[str, Estimate]:
    """Scores of all classes together with their intervals; counts of ``cases``, and those of their bootstrap samples."""
    values, draws = confusion_scores(confusion), confusion_scores(resampled)
    return {name: Estimate(float(value), *interval_of(draws[name]), cases) for name, value in values.items()}


def class_estimates(
    confusion: NDArray[np.int64],
    resampled: NDArray[np.float64],
    positives: NDArray[np.int64],
    negatives: NDArray[np.int64],
) -> list[dict[str, Estimate]]:
    """Scores of each class with their intervals, from counts and those of their bootstrap samples.

    ``positives`` and ``negatives`` are the independent cases of each class and of the others, shape ``(classes,)``.
    """
    values, draws = confusion_class_scores(confusion), confusion_class_scores(resampled)
    return [
        {
            name: Estimate(
                float(values[name][number]),
                *interval_of(draws[name][:, number]),
                int((negatives if name == "specificity" else positives)[number]),
            )
            for name in values
        }
        for number in range(len(confusion))
    ]


def mean_estimate(
    confusions: Mapping[str, NDArray[np.int64]], resampled: Mapping[str, NDArray[np.float64]], cases: int
) -> dict[str, Estimate]:
    """Unweighted means over sites, at least one; the interval covers other patients of these sites, not other sites.

    ``cases`` is how many independent cases the sites have together.
    """
    of_sites = [confusion_scores(confusions[site]) for site in confusions]
    draws = [confusion_scores(resampled[site]) for site in confusions]
    return {
        name: Estimate(
            mean_of_known([float(scores[name]) for scores in of_sites]),
            *interval_of(_means(np.stack([scores[name] for scores in draws]))),
            cases,
        )
        for name in of_sites[0]
    }


def auc_estimates(
    cases: Cases, generator: np.random.Generator, resamples: int = AUC_RESAMPLES
) -> list[dict[str, Estimate]]:
    """AUROC and average precision of each class against the others, with intervals; both rest on the smaller side's cases.

    Raises:
        ValueError: if there are no probabilities.
    """
    if cases.probabilities is None:
        raise ValueError("an area needs probabilities, and only the predicted classes are known")
    weights = resampled_weights(cases, generator, resamples)
    once = np.ones((1, len(cases.labels)))
    found = []
    for number, behind in enumerate(np.minimum(cases.positives(), cases.negatives()).tolist()):
        positive, scores = cases.labels == number, cases.probabilities[:, number]
        if not behind:
            found.append(dict.fromkeys(Areas._fields, Estimate(np.nan, np.nan, np.nan, 0)))
            continue
        values, draws = weighted_areas(positive, scores, once), weighted_areas(positive, scores, weights)
        found.append(
            {
                name: Estimate(float(getattr(values, name)[0]), *interval_of(getattr(draws, name)), behind)
                for name in Areas._fields
            }
        )
    return found


def _means(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of none is NaN
        return np.asarray(np.nanmean(draws, axis=0))


def _draws(
    cases: Cases, generator: np.random.Generator, resamples: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    require_at_least(resamples, 1, "resamples")
    names, index = np.unique(cases.groups, return_inverse=True)
    if not len(names):
        return np.zeros((resamples, 0)), index
    drawn = generator.integers(0, len(names), size=(resamples, len(names)), dtype=np.int32)
    cells = drawn + np.arange(resamples)[:, None] * len(names)
    counts = np.bincount(cells.ravel(), minlength=resamples * len(names))
    return counts.reshape(resamples, len(names)).astype(np.float64), index
