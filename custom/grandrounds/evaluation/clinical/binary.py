"""Cases of a named positive group against all other classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.bootstrap import Cases

POSITIVE = 1
"""Index of the positive group in the cases of :func:`binary_cases`."""


def binary_cases(cases: Cases, positive: Sequence[int]) -> Cases:
    """The same images with two classes: 0 all others, 1 the positive group, whose probability is a sum.

    Args:
        cases: with probabilities of the model's classes.
        positive: indices of the group's classes.

    Raises:
        ValueError: if there are no probabilities, or the group has no class or all of them.
    """
    if cases.probabilities is None:
        raise ValueError("a positive group needs probabilities, and only the predicted classes are known")
    chosen = sorted(set(positive))
    if not 0 < len(chosen) < cases.classes:
        raise ValueError(f"the positive group must have some of {cases.classes} classes and not all, got {len(chosen)}")
    inside = cases.probabilities[:, chosen].sum(axis=1).clip(0, 1)
    probabilities = np.stack([1 - inside, inside], axis=1)
    true, predicted = np.isin(cases.labels, chosen), inside >= 0.5
    return Cases(true.astype(np.int64), predicted.astype(np.int64), cases.groups, probabilities, 2)


def positive_scores(cases: Cases) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Whether each image is positive, and its probability, of the cases that :func:`binary_cases` gives."""
    if cases.probabilities is None or cases.classes != 2:
        raise ValueError("expected the cases of a positive group, with probabilities")
    return cases.labels == POSITIVE, cases.probabilities[:, POSITIVE]
