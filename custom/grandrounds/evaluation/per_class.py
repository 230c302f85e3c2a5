"""Scores of each class against all others, at each site and over several, and of groups of classes.

A site without a class contributes nothing to the class's scores: they are NaN there, and the mean is over the sites that
have it.

Groups: a model of eight diagnoses is tested on a data set that only says benign or malignant, as FedPerl is (Bdair et al.,
MELBA 2022, Table 9: ISIC 2020). There are two readings of a prediction: the group of the most probable class, and the group
with the highest summed probability.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_known_label, require_probabilities
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.auc import weighted_areas
from grandrounds.evaluation.metrics import PrecisionRecallF1, confusion_matrix, mean_of_known, precision_recall_f1

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

    Labels have shape ``(samples,)``, probabilities ``(samples, classes)``; of equal ones the lower class is the prediction.

    Raises:
        ValueError: if the shapes do not fit together, a label is no class, or a row is no distribution.
    """
    import torch

    require_probabilities(torch.as_tensor(probabilities), "probabilities")
    predicted = probabilities.argmax(axis=1)
    counted = precision_recall_f1(confusion_matrix(labels, predicted, probabilities.shape[1]))
    return [
        ClassScores(*scores, *_areas(labels == number, probabilities[:, number], predicted == number))
        for number, scores in enumerate(counted)
    ]


def per_class(sites: Mapping[str, Predictions]) -> PerClass:
    """Scores of each class as the mean over sites that have it, and of all samples together.

    Each site has labels and probabilities as in :func:`class_scores`; there must be a site (:class:`ValueError`).
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


ARGMAX, SUMMED = "argmax", "summed"


@dataclass(frozen=True, eq=False)
class Grouping:
    """To which group each class belongs.

    Attributes:
        names: of the groups.
        group_of: index of each class's group, int64, shape ``(classes,)``.
    """

    names: tuple[str, ...]
    group_of: NDArray[np.int64]


def grouping_of(groups: Mapping[str, Sequence[str]], classes: Sequence[str]) -> Grouping:
    """Check that each class is in exactly one group.

    Args:
        groups: names of classes by group. Of equally probable groups the first is predicted, so it should be the one
            that must not be missed.
        classes: the model's vocabulary.

    Raises:
        ConfigurationError: if there are fewer than two groups, a group has no class, or a class is in no group, in two,
            or unknown to the model.

    Example:
        >>> grouping_of({"malignant": ["mel"], "benign": ["nv", "df"]}, ["df", "mel", "nv"]).group_of
        array([1, 0, 1])
    """
    if len(groups) < 2:
        raise ConfigurationError(f"groups: expected at least two, got {', '.join(groups) or 'none'}")
    group_of: dict[str, int] = {}
    for number, (group, members) in enumerate(groups.items()):
        if not members:
            raise ConfigurationError(f"groups: {group} has no class")
        for name in members:
            _require_known_class(name, classes, group)
            if name in group_of:
                raise ConfigurationError(f"groups: class {name!r} is named twice; name it in one group")
            group_of[name] = number
    missing = [name for name in classes if name not in group_of]
    if missing:
        raise ConfigurationError(f"groups: class {missing[0]!r} of the model is in no group; add it to one")
    return Grouping(tuple(groups), np.array([group_of[name] for name in classes], np.int64))


def summed_probabilities(probabilities: NDArray[np.floating], grouping: Grouping) -> NDArray[np.float64]:
    r"""Probability of each group, :math:`p_g = \sum_{c \in g} p_c`, from those of classes, shape ``(samples, classes)``.

    Raises:
        ValueError: if the numbers of classes differ.
    """
    if probabilities.ndim != 2 or probabilities.shape[1] != len(grouping.group_of):
        raise ValueError(f"expected probabilities (samples, {len(grouping.group_of)}), got {probabilities.shape}")
    members = np.eye(len(grouping.names))[grouping.group_of]
    return probabilities.astype(np.float64) @ members


def group_predictions(probabilities: NDArray[np.floating], grouping: Grouping) -> dict[str, NDArray[np.int64]]:
    """Both readings of each prediction.

    Returns:
        Indices of groups, shape ``(samples,)``: ``argmax`` is the group of the most probable class, ``summed`` the
        group with the most probability. Of two groups that is the first if it has at least one half.

    Example:
        >>> grouping = Grouping(("malignant", "benign"), np.array([0, 0, 1]))
        >>> {name: int(found[0]) for name, found in group_predictions(np.array([[0.3, 0.3, 0.4]]), grouping).items()}
        {'argmax': 1, 'summed': 0}
    """
    summed = summed_probabilities(probabilities, grouping).argmax(axis=1)
    return {ARGMAX: grouping.group_of[probabilities.argmax(axis=1)], SUMMED: summed.astype(np.int64)}


def group_scores(
    labels: NDArray[np.integer], probabilities: NDArray[np.floating], grouping: Grouping
) -> dict[str, dict[str, PrecisionRecallF1]]:
    """Precision, recall and F1 of each group by reading; NaN for a group without samples.

    Labels are indices into ``grouping.names``, probabilities those of the classes.
    """
    names = grouping.names
    return {
        reading: dict(zip(names, precision_recall_f1(confusion_matrix(labels, predicted, len(names))), strict=True))
        for reading, predicted in group_predictions(probabilities, grouping).items()
    }


def _require_known_class(name: str, classes: Sequence[str], group: str) -> None:
    try:
        require_known_label(name, classes, f"groups: {group}")
    except DataError as error:
        raise ConfigurationError(f"{error}; leave out what the model does not know") from error
