"""Placing groups of different sizes into parts so that the parts get about the sizes they want.

Meeting the sizes exactly is a bin-packing problem; chance first and exchanges afterwards come as close as matters, and
keep the division random.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


class _Exchange(NamedTuple):
    """Group ``given`` goes from part ``full`` to part ``short``; ``taken`` comes back, or nothing when it is -1."""

    gain: int
    given: int
    taken: int
    full: int
    short: int


def place_groups(sizes: Counts, wanted: Counts, generator: np.random.Generator) -> Counts:
    """Choose a part for every group.

    Args:
        sizes: images in each group, in random order among equal sizes, the largest first.
        wanted: images that each part should get; they sum to the images there are.
        generator: where the randomness comes from.

    Returns:
        The part of each group. A part that wants something gets at least one group, or, with fewer groups than such
        parts, the parts that want most do.
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
    # One group of each size stands for all of that size.
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
