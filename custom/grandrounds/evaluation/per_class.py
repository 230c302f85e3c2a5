"""Scores of each class, one against all others, at one place and over several.

A place without a class says nothing about it: its scores are NaN there, and the mean is over the places that have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from grandrounds.checks import require_probabilities
from grandrounds.evaluation.estimates import class_count_scores, mean_of_known
from grandrounds.evaluation.metrics import confusion_matrix

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
        auroc_hard_label: area under the ROC curve of "is predicted" (0 or 1), which is the mean of sensitivity and
            specificity.
        auprc_hard_label: area under the precision-recall curve of "is predicted" by the trapezoidal rule; a class that
            is never predicted has (1 + prevalence) / 2. The two are what FedPerl's Tables 6 and 7 seem to show, and are
            here for comparison with them only. The last four are NaN without samples of the class, or without others.
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
    """Scores of each class over several places.

    Attributes:
        places: how many places have each class.
        mean: mean over the places where the score is no NaN; ``n`` is the sum.
        pooled: scores of all samples together.
    """

    places: list[int]
    mean: list[ClassScores]
    pooled: list[ClassScores]


class PrecisionRecallF1(NamedTuple):
    """Precision, recall and F1 of one class with ``n`` true samples; NaN where ``n`` is zero."""

    n: int
    precision: float
    recall: float
    f1: float


def precision_recall_f1(confusion: NDArray[np.integer]) -> list[PrecisionRecallF1]:
    r"""Precision, recall and F1 of each class.

    .. math:: P_c = \frac{m_{cc}}{\sum_i m_{ic}}, \qquad R_c = \frac{m_{cc}}{\sum_j m_{cj}}, \qquad
        F_c = \frac{2 m_{cc}}{\sum_i m_{ic} + \sum_j m_{cj}}

    Args:
        confusion: counts, shape ``(classes, classes)``: row true class, column predicted class.

    Returns:
        One entry per class; the precision of a class that is never predicted is zero.

    Example:
        >>> precision_recall_f1(np.array([[3, 1], [0, 0]]))[0]
        PrecisionRecallF1(n=4, precision=1.0, recall=0.75, f1=0.8571428571428571)
    """
    scores = class_count_scores(confusion)
    columns = (confusion.sum(axis=1), scores["precision"], scores["sensitivity"], scores["f1"])
    return [PrecisionRecallF1(*entry) for entry in zip(*(column.tolist() for column in columns), strict=True)]


def class_scores(labels: NDArray[np.integer], probabilities: NDArray[np.floating]) -> list[ClassScores]:
    """Scores of each class at one place.

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


def per_class(places: Mapping[str, Predictions]) -> PerClass:
    """Scores of each class as the mean over places that have it, and of all samples together.

    Args:
        places: labels and probabilities of each place, as in :func:`class_scores`.

    Raises:
        ValueError: if there is no place, or one's labels and probabilities are not as they must be.
    """
    if not places:
        raise ValueError("there are no places")
    at_places = [class_scores(labels, probabilities) for labels, probabilities in places.values()]
    pooled = class_scores(*(np.concatenate(parts) for parts in zip(*places.values(), strict=True)))
    of_class = list(zip(*at_places, strict=True))
    return PerClass(
        places=[sum(scores.n > 0 for scores in row) for row in of_class],
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
    from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_auc_score

    precision, recall, _ = precision_recall_curve(positive, predicted)
    return (
        float(roc_auc_score(positive, score)),
        float(average_precision_score(positive, score)),
        float(roc_auc_score(positive, predicted)),
        float(auc(recall, precision)),
    )
