"""Which images belong together: those of a patient, and those of a lesion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from grandrounds.data.manifest import Record


def whole_groups(records: Sequence[Record]) -> list[tuple[int, ...]]:
    """Collect the records that must stay together.

    Two records belong together when they share a patient or a lesion, directly or through others: an image that names
    its lesion alone joins the patient who has that lesion in another row.

    Returns:
        The positions of the records of each group; groups in the order of their first record.

    Example:
        >>> whole_groups([Record("a", lesion="x"), Record("b"), Record("c", patient="p", lesion="x")])
        [(0, 2), (1,)]
    """
    parent = list(range(len(records)))

    def root(index: int) -> int:
        """The record that stands for the group of another; the way to it is shortened for the next time."""
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[tuple[str, str], int] = {}
    for index, record in enumerate(records):
        for key in (("patient", record.patient), ("lesion", record.lesion)):
            if key[1]:
                earlier, later = sorted((root(first.setdefault(key, index)), root(index)))
                parent[later] = earlier
    groups: dict[int, list[int]] = {}
    for index in range(len(records)):
        groups.setdefault(root(index), []).append(index)
    return [tuple(members) for members in groups.values()]


def majority(values: Iterable[str]) -> str:
    """The most frequent value; of equally frequent ones the first in alphabetical order.

    Example:
        >>> majority(["nv", "mel", "mel", "nv"])
        'mel'
    """
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))
