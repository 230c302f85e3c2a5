"""Groups of a model's classes, and two readings of its predictions as groups.

A model of eight diagnoses is tested on a data set that only says benign or malignant, as FedPerl is (Bdair et al.,
MELBA 2022, Table 9: ISIC 2020). A prediction is read as the group of the most probable class, or as the group with the
highest summed probability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_known_label
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.bootstrap import Cases, cases_of
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE

ARGMAX, SUMMED = GROUP_READINGS = "argmax", "summed"
"""The group of the most probable class, or that with the highest sum."""


@dataclass(frozen=True, eq=False)
class Grouping:
    """To which group each class belongs.

    Attributes:
        names: of the groups.
        group_of: index of each class's group, int64, shape ``(classes,)``.
        task: decides for a class.
    """

    names: tuple[str, ...]
    group_of: NDArray[np.int64]
    task: Task = SINGLE


def grouping_of(groups: Mapping[str, Sequence[str]], classes: Sequence[str], task: Task = SINGLE) -> Grouping:
    """Check that each class is in exactly one group.

    Args:
        groups: names of classes by group. Of equally probable groups the first is predicted, so it should be the one
            that must not be missed.
        classes: the model's vocabulary.
        task: of the model; its classes exclude each other.

    Raises:
        ConfigurationError: if there are fewer than two groups, a group has no class, or a class is in no group, in two,
            or unknown to the model.

    Example:
        >>> grouping_of({"malignant": ["mel"], "benign": ["nv", "df"]}, ["df", "mel", "nv"]).group_of
        array([1, 0, 1])
    """
    if len(groups) < 2:
        raise ConfigurationError(f"--groups: expected at least two, got {', '.join(groups) or 'none'}")
    group_of: dict[str, int] = {}
    for number, (group, members) in enumerate(groups.items()):
        if not members:
            raise ConfigurationError(f"--groups: {group} has no class")
        for name in members:
            _require_known_class(name, classes, group)
            if name in group_of:
                raise ConfigurationError(f"--groups: class {name!r} is named twice; name it in one group")
            group_of[name] = number
    missing = [name for name in classes if name not in group_of]
    if missing:
        raise ConfigurationError(
            f"--groups: {', '.join(missing)} of the model's classes are in no group; add each to one, or as a group that no "
            f"image here has: other={','.join(missing)}"
        )
    return Grouping(tuple(groups), np.array([group_of[name] for name in classes], np.int64), task)


def summed_probabilities(probabilities: NDArray[np.floating], grouping: Grouping) -> NDArray[np.float64]:
    r"""Probability of each group, :math:`p_g = \sum_{c \in g} p_c`, from those of classes, shape ``(samples, classes)``.

    Raises:
        ValueError: if the numbers of classes differ.
    """
    if probabilities.ndim != 2 or probabilities.shape[1] != len(grouping.group_of):
        raise ValueError(f"expected probabilities (samples, {len(grouping.group_of)}), got {probabilities.shape}")
    members = np.eye(len(grouping.names))[grouping.group_of]
    return probabilities.astype(np.float64) @ members


def grouped_cases(
    labels: NDArray[np.int64],
    probabilities: NDArray[np.floating],
    decided: NDArray[np.int64],
    grouping: Grouping,
    cases: Sequence[str] | None = None,
) -> dict[str, Cases]:
    """Images with groups as classes, in both readings of each prediction.

    Args:
        labels: indices of groups, shape ``(samples,)``.
        probabilities: of the classes, shape ``(samples, classes)``.
        decided: the predicted classes, shape ``(samples,)``.
        grouping: of the classes.
        cases: the patient or lesion of each image; without, each image is a case.

    Returns:
        ``argmax``: the group of the predicted class; ``summed``: the group with the most probability, of two groups the
        first if it has at least one half.

    Example:
        >>> grouping = Grouping(("malignant", "benign"), np.array([0, 0, 1]))
        >>> found = grouped_cases(np.array([0]), np.array([[0.3, 0.3, 0.4]]), np.array([2]), grouping)
        >>> {reading: one.predicted.tolist() for reading, one in found.items()}
        {'argmax': [1], 'summed': [0]}
    """
    summed = cases_of(labels, summed_probabilities(probabilities, grouping), cases)
    return {ARGMAX: replace(summed, predicted=grouping.group_of[decided]), SUMMED: summed}


def _require_known_class(name: str, classes: Sequence[str], group: str) -> None:
    try:
        require_known_label(name, classes, f"--groups: {group}")
    except DataError as error:
        raise ConfigurationError(f"{error}; leave out what the model does not know") from error
