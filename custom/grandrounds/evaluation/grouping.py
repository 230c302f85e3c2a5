"""Groups of classes: a model of eight diagnoses is tested on a data set that only says benign or malignant.

FedPerl (Bdair et al., MELBA 2022, Table 9) tests its models on ISIC 2020 in this way. There are two readings of a
prediction: the group of the most probable class, and the group with the highest summed probability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.manifest import require_known_label
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.metrics import PrecisionRecallF1, confusion_matrix, precision_recall_f1

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
    r"""Probability of each group, :math:`p_g = \sum_{c \in g} p_c`.

    Args:
        probabilities: of the classes, shape ``(samples, classes)``.
        grouping: of the classes.

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

    Raises:
        ValueError: if the numbers of classes differ.

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
    """Precision, recall and F1 of each group, in both readings.

    Args:
        labels: true groups, shape ``(samples,)``, indices into ``grouping.names``.
        probabilities: of the classes, shape ``(samples, classes)``.
        grouping: of the classes.

    Returns:
        By reading (``argmax`` and ``summed``) and group; NaN for a group without samples.

    Raises:
        ValueError: if the shapes do not fit together or a label is no group.
    """
    return {
        reading: dict(
            zip(
                grouping.names,
                precision_recall_f1(confusion_matrix(labels, predicted, len(grouping.names))),
                strict=True,
            )
        )
        for reading, predicted in group_predictions(probabilities, grouping).items()
    }


def _require_known_class(name: str, classes: Sequence[str], group: str) -> None:
    try:
        require_known_label(name, classes, f"groups: {group}")
    except DataError as error:
        raise ConfigurationError(f"{error}; leave out what the model does not know") from error
