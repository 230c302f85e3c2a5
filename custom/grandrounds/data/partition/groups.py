"""Patients and lesions stay whole: which images belong together, and how groups are divided into parts of given sizes.

Images of one lesion in both training and test sets make a model look better than it is, so nothing here divides a group.
Sizes are met as closely as whole groups allow: groups are placed at random first and exchanged afterwards, because meeting
the sizes exactly is a bin-packing problem.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_fraction
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

Counts = NDArray[np.int64]


class TooFewImages(DataError):
    """A site, or a part of one, would be empty."""


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
    from scipy.sparse import coo_array  # here, because a site that divides nothing does not wait for it
    from scipy.sparse.csgraph import connected_components

    names: dict[tuple[str, str], int] = {}
    links = [
        (index, len(records) + names.setdefault(key, len(names)))
        for index, record in enumerate(records)
        for key in (("patient", record.patient), ("lesion", record.lesion))
        if key[1]
    ]
    if not links:
        return [(index,) for index in range(len(records))]
    nodes = len(records) + len(names)
    graph = coo_array((np.ones(len(links), bool), tuple(zip(*links, strict=True))), shape=(nodes, nodes))
    groups: dict[int, list[int]] = {}
    for index, group in enumerate(connected_components(graph, directed=False)[1][: len(records)].tolist()):
        groups.setdefault(group, []).append(index)
    return [tuple(members) for members in groups.values()]


def majority(values: Iterable[str]) -> str:
    """The most frequent value; of equally frequent ones the first in alphabetical order.

    Example:
        >>> majority(["nv", "mel", "mel", "nv"])
        'mel'
    """
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))


class _Exchange(NamedTuple):
    """Group ``given`` goes from part ``full`` to part ``short``; ``taken`` comes back, or nothing when it is -1."""

    gain: int
    given: int
    taken: int
    full: int
    short: int


def place_groups(sizes: Counts, wanted: Counts, generator: np.random.Generator) -> Counts:
    """Choose a part for every group.

    ``sizes`` are the images of each group in random order, the largest first; ``wanted`` those of each part, which sum to
    all images. A part that wants something gets at least one group, or, with fewer groups than such parts, the parts
    that want most do.
    """
    missing = wanted.copy()
    places = np.empty(len(sizes), dtype=np.int64)
    opened = [int(part) for part in np.argsort(-wanted, kind="stable") if wanted[part] > 0][: len(sizes)]
    rest = len(sizes) - len(opened)
    places[rest:] = opened
    np.subtract.at(missing, places[rest:], sizes[rest:])
    for group in range(rest):
        places[group] = _draw_part(int(sizes[group]), missing, generator)
        missing[places[group]] -= sizes[group]
    _even_out(sizes, places, missing)
    return places


def _draw_part(size: int, missing: Counts, generator: np.random.Generator) -> int:
    """Draw a part in which the group fits, in proportion to what it still misses; else the one that misses most.

    Always taking the one that misses most would send all large groups to the largest part.
    """
    chances = np.where(missing >= size, missing, 0).cumsum()
    if chances[-1] <= 0:
        return int(missing.argmax())
    return int(np.searchsorted(chances, generator.random() * chances[-1], side="right"))


def _even_out(sizes: Counts, places: Counts, missing: Counts) -> None:
    """Move or swap groups between a part with too many images and one with too few while that brings both closer."""
    while True:
        exchanges = [
            _best_exchange(sizes, places, missing, int(full), int(short))
            for full in np.flatnonzero(missing < 0)
            for short in np.flatnonzero(missing > 0)
        ]
        best = max(exchanges, default=None)
        if best is None or best.gain <= 0:
            return
        moved = sizes[best.given] - (sizes[best.taken] if best.taken >= 0 else 0)
        places[best.given] = best.short
        if best.taken >= 0:
            places[best.taken] = best.full
        missing[best.full] += moved
        missing[best.short] -= moved


def _best_exchange(sizes: Counts, places: Counts, missing: Counts, full: int, short: int) -> _Exchange:
    excess, lack = -int(missing[full]), int(missing[short])
    inside, outside = np.flatnonzero(places == full), np.flatnonzero(places == short)
    # One group of each size represents all of that size.
    given = {int(sizes[group]): int(group) for group in inside}
    taken = {int(sizes[group]): int(group) for group in outside}
    if len(inside) > 1:
        taken[0] = -1
    best = _Exchange(0, -1, -1, full, short)
    for large, group in given.items():
        for small, other in taken.items():
            moved = large - small
            gain = excess + lack - abs(excess - moved) - abs(lack - moved)
            best = max(best, _Exchange(gain, group, other, full, short))
    return best


def shares_to_counts(shares: Sequence[float], total: int, minimum: int = 0) -> list[int]:
    """Divide ``total`` things in proportion to shares, by largest remainders.

    Shares need not sum to one; every positive share gets at least ``minimum``.

    Raises:
        ValueError: if a share is negative, none is positive, or ``total`` is too small for ``minimum``.

    Example:
        >>> shares_to_counts([2259, 3363, 3954, 439], 10, minimum=1)
        [2, 3, 4, 1]
    """
    if min(shares, default=0) < 0 or sum(shares) <= 0:
        raise ValueError(f"shares must not be negative and one must be positive, got {list(shares)}")
    floors = [minimum if share > 0 else 0 for share in shares]
    if sum(floors) > total:
        raise ValueError(f"{total} cannot give {minimum} to each of {sum(share > 0 for share in shares)}")
    quotas = [share / sum(shares) * total for share in shares]
    counts = [max(math.floor(quota), floor) for quota, floor in zip(quotas, floors, strict=True)]
    positive = [index for index, share in enumerate(shares) if share > 0]
    while sum(counts) < total:
        counts[max(positive, key=lambda index: quotas[index] - counts[index])] += 1
    while sum(counts) > total:
        above = [index for index in positive if counts[index] > floors[index]]
        counts[max(above, key=lambda index: counts[index] - quotas[index])] -= 1
    return counts


def divide_groups(
    records: Sequence[Record], fractions: Mapping[str, float], generator: np.random.Generator
) -> dict[str, tuple[Record, ...]]:
    """Divide records at random into parts whose image counts are as close to the fractions as whole groups allow.

    Each part that wants an image gets at least one group, see :func:`divide_into_counts`. Records keep their order within
    each part.

    Raises:
        ValueError: if a fraction is outside [0, 1] or they do not sum to one.

    Example:
        >>> three = [Record("a", patient="p"), Record("b", patient="p"), Record("c")]
        >>> parts = divide_groups(three, {"left": 2 / 3, "right": 1 / 3}, np.random.default_rng(0))
        >>> [record.image for record in parts["left"]], [record.image for record in parts["right"]]
        (['a', 'b'], ['c'])
    """
    for name, fraction in fractions.items():
        require_fraction(fraction, f"the fraction of {name}")
    if not math.isclose(sum(fractions.values()), 1.0, abs_tol=1e-6):
        raise ValueError(f"fractions must sum to 1, got {sum(fractions.values()):.6g}")
    counts = shares_to_counts(list(fractions.values()), len(records))
    return divide_into_counts(records, dict(zip(fractions, counts, strict=True)), generator)


def divide_into_counts(
    records: Sequence[Record], counts: Mapping[str, int], generator: np.random.Generator
) -> dict[str, tuple[Record, ...]]:
    """Divide records at random into parts of about the wanted numbers of images, groups whole.

    A part of which at least one image is wanted gets at least one group as long as there are groups; where there are
    fewer groups than such parts, the larger parts come first. Records beyond the sum of the counts are left out.

    Raises:
        ValueError: if a count is negative or more images are wanted than there are.
    """
    spare = len(records) - sum(counts.values())
    if spare < 0 or min(counts.values(), default=0) < 0:
        raise ValueError(f"cannot divide {len(records)} records into {dict(counts)}")
    groups = whole_groups(records)
    shuffled = [groups[index] for index in generator.permutation(len(groups))]
    # Large groups first: the small ones that follow even out what the large ones overshot.
    shuffled.sort(key=len, reverse=True)
    sizes = np.array([len(group) for group in shuffled], dtype=np.int64)
    names = [*counts, None]  # None: left out
    places = place_groups(sizes, np.array([*counts.values(), spare], dtype=np.int64), generator)
    members: dict[str | None, list[int]] = {name: [] for name in names}
    for group, place in zip(shuffled, places, strict=True):
        members[names[place]].extend(group)
    return {name: tuple(records[index] for index in sorted(members[name])) for name in counts}
