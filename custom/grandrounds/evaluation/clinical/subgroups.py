"""Subgroups of test images by further columns of a manifest, such as age, sex, body site or device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.keys import is_missing
from grandrounds.evaluation.bootstrap import Cases
from grandrounds.ordering import natural_sorted

MAX_GROUPS = 12
"""A column of more texts than this is no subgroup, but a description of single images."""
NOT_KNOWN = "not known"


class Subgroup(NamedTuple):
    """The images of one value, or one range of values, of a column; ``rows`` are their indices, rising."""

    column: str
    value: str
    rows: NDArray[np.int64]


def subgroups_of(columns: Mapping[str, Sequence[str]]) -> list[Subgroup]:
    """The subgroups of each column, in the order of the columns.

    A column of numbers with more than ``MAX_GROUPS`` values is cut at its quartiles. A column with one value only, or with
    more than ``MAX_GROUPS`` texts, is left out.

    Args:
        columns: the value of each image by column; an empty text, and what people write for it, is not known.

    Example:
        >>> [(group.value, group.rows.tolist()) for group in subgroups_of({"sex": ["f", "m", "f", ""]})]
        [('f', [0, 2]), ('m', [1]), ('not known', [3])]
    """
    subgroups: list[Subgroup] = []
    for column, values in columns.items():
        named = _named(["" if is_missing(value, "source") else value for value in values])
        labels = natural_sorted({label for label in named if label != NOT_KNOWN})
        if not 1 < len(labels) <= MAX_GROUPS:
            continue
        order = [*_by_number(labels), *([NOT_KNOWN] if NOT_KNOWN in named else [])]
        texts = np.array(named, np.str_)
        subgroups += [Subgroup(column, label, np.flatnonzero(texts == label).astype(np.int64)) for label in order]
    return subgroups


def _named(values: Sequence[str]) -> list[str]:
    """The group of each image."""
    known = {value for value in values if value}
    numbers = {value: number for value in known if math.isfinite(number := _number(value))}
    if len(known) <= MAX_GROUPS or len(numbers) < len(known):
        return [value or NOT_KNOWN for value in values]
    quartiles = np.quantile([numbers[value] for value in values if value], [0.25, 0.5, 0.75])
    edges = list(dict.fromkeys(float(edge) for edge in quartiles))
    return [_range(numbers[value], edges) if value else NOT_KNOWN for value in values]


def _range(number: float, edges: Sequence[float]) -> str:
    if number <= edges[0]:
        return f"up to {edges[0]:g}"
    if number > edges[-1]:
        return f"above {edges[-1]:g}"
    place = next(place for place, edge in enumerate(edges) if number <= edge)
    return f"above {edges[place - 1]:g} to {edges[place]:g}"


def _by_number(labels: Sequence[str]) -> list[str]:
    """Ranges by their limits, all else in natural order."""
    if not any(label.startswith(("up to ", "above ")) for label in labels):
        return list(labels)
    return sorted(labels, key=lambda label: (not label.startswith("up to "), _number(label.split()[1]), len(label)))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def subset(cases: Cases, group: Subgroup) -> Cases:
    """The cases of a subgroup's images."""
    rows = group.rows
    probabilities = None if cases.probabilities is None else cases.probabilities[rows]
    numbers = np.unique(cases.groups[rows], return_inverse=True)[1].astype(np.int64)
    return Cases(cases.labels[rows], cases.predicted[rows], numbers, probabilities, cases.classes)
