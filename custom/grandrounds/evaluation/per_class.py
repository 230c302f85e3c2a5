"""Scores of each class, one against all others, at each site and over several.

A site without a class contributes nothing to the class's scores: they are NaN there, and the mean is over the sites that
have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from grandrounds.checks import require_probabilities
from grandrounds.evaluation.auc import weighted_areas
from grandrounds.evaluation.metrics import confusion_matrix, mean_of_known, precision_recall_f1

Predictions = tuple[NDArray[np.integer], NDArray[np.floating]]


class ClassScores(NamedTuple):
    """Scores of one class, all but ``n`` in [0, 1] or NaN.

    Attributes:
        n: number of samples that are of the class.
        precision: of the most probable class; zero where the class is never predicted.
        recall: likewise.
        f1: likewise; these three are NaN without samples of the class.
        auroc: area under the ROC curve of the class's probability.
        average_precision: of the class's probability, without interpolation.
        auroc_hard_label: area under the ROC curve of "is predicted" (0 or 1): the mean of sensitivity and specificity.
        auprc_hard_label: area under the precision-recall curve of "is predicted" by the trapezoidal rule; a class that
            is never predicted has (1 + prevalence) / 2. These two serve comparison with FedPerl's Tables 6 and 7 only.
            The last four are NaN without samples of the class, or without others.
    """

    n: int
    precision: float
    recall: float
    f1: float
    auroc: float
    average_precision: float
    auroc_hard_label: float
    auprc_hard_label: float


class PerClass(NamedTuple):
    """Scores of each class over several sites.

    Attributes:
        sites: how many sites have each class.
        mean: mean over the sites where the score is not NaN; ``n`` is the sum.
        pooled: scores of all samples together.
    """

    sites: list[int]
    mean: list[ClassScores]
    pooled: list[ClassScores]


def class_scores(labels: NDArray[np.integer], probabilities: NDArray[np.floating]) -> list[ClassScores]:
    """Scores of each class of one set of predictions.

    Args:
        labels: true classes, shape ``(samples,)``, integers in [0, classes).
        probabilities: predictions (not logits), shape ``(samples, classes)``; rows sum to one. Of equal probabilities
            the lower class is the prediction.

    Returns:
        One entry per class.

    Raises:
        ValueError: if the shapes do not fit together, a label is no class, or a row is no distribution.
    """
    require_probabilities(torch.as_tensor(probabilities), "probabilities")
    predicted = probabilities.argmax(axis=1)
    counted = precision_recall_f1(confusion_matrix(labels, predicted, probabilities.shape[1]))
    return [
        ClassScores(*scores, *_areas(labels == number, probabilities[:, number], predicted == number))
        for number, scores in enumerate(counted)
    ]


def per_class(sites: Mapping[str, Predictions]) -> PerClass:
    """Scores of each class as the mean over sites that have it, and of all samples together.

    Args:
        sites: labels and probabilities of each site, as in :func:`class_scores`.

    Raises:
        ValueError: if there is no site, or one's labels and probabilities are not as they must be.
    """
    if not sites:
        raise ValueError("there are no sites")
    at_sites = [class_scores(labels, probabilities) for labels, probabilities in sites.values()]
    pooled = class_scores(*(np.concatenate(parts) for parts in zip(*sites.values(), strict=True)))
    of_class = list(zip(*at_sites, strict=True))
    return PerClass(
        sites=[sum(scores.n > 0 for scores in row) for row in of_class],
        mean=[_mean(row) for row in of_class],
        pooled=pooled,
    )


def _mean(row: Sequence[ClassScores]) -> ClassScores:
    n, *columns = zip(*row, strict=True)
    return ClassScores(sum(n), *(mean_of_known(column) for column in columns))


def _areas(
    positive: NDArray[np.bool_], score: NDArray[np.floating], predicted: NDArray[np.bool_]
) -> tuple[float, float, float, float]:
    if positive.all() or not positive.any():
        return math.nan, math.nan, math.nan, math.nan
    once = np.ones((1, len(positive)))
    soft, hard = weighted_areas(positive, score, once), weighted_areas(positive, predicted.astype(np.float64), once)
    # Of "is predicted" the precision-recall curve has three points: everything, what is predicted, and (0, 1).
    prevalence, recall = positive.mean(), (positive & predicted).sum() / positive.sum()
    precision = positive[predicted].mean() if predicted.any() else 1.0
    trapezoids = (1 - recall) * (prevalence + precision) / 2 + recall * (precision + 1) / 2
    return float(soft.auroc[0]), float(soft.average_precision[0]), float(hard.auroc[0]), float(trapezoids)
