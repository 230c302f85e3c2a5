"""Placing groups of different sizes into parts so that the parts get about the sizes they want.

Meeting the sizes exactly is a bin-packing problem; chance first and exchanges afterwards come as close as matters, and
keep the division random.

Dividing images at random while the images of a patient or lesion stay together.

Images of one lesion in both training and test sets make a model look better than it is, so nothing here divides a group
(see ``whole_groups``). Counts are met as closely as whole groups allow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_fraction
from grandrounds.data.grouping import majority, whole_groups
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

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


def shares_to_counts(shares: Sequence[float], total: int, least: int = 0) -> list[int]:
    """Divide ``total`` things in proportion to shares, by largest remainders.

    Args:
        shares: not negative, at least one positive; they need not sum to one.
        total: how many there are.
        least: what every positive share gets in any case.

    Returns:
        Counts that sum to ``total``.

    Raises:
        ValueError: if a share is negative, none is positive, or ``total`` is too small for ``least``.

    Example:
        >>> shares_to_counts([2259, 3363, 3954, 439], 10, least=1)
        [2, 3, 4, 1]
    """
    if min(shares, default=0) < 0 or sum(shares) <= 0:
        raise ValueError(f"shares must not be negative and one must be positive, got {list(shares)}")
    floors = [least if share > 0 else 0 for share in shares]
    if sum(floors) > total:
        raise ValueError(f"{total} cannot give {least} to each of {sum(share > 0 for share in shares)}")
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

    Args:
        records: the records; they keep their order within each part.
        fractions: share of the images for each part, summing to one.
        generator: where the randomness comes from.

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


def assign_splits(
    records: Sequence[Record],
    generator: np.random.Generator,
    *,
    site: str,
    validation: float = 0.125,
    test: float = 0.375,
    labelled: float = 0.25,
) -> tuple[Record, ...]:
    """Give every record of one site its split, and choose the training records whose label may be used.

    The defaults are FedPerl's (Bdair et al., MICCAI 2021): half of a client's images for training, of which a quarter
    is labelled. Groups are kept whole, also between the labelled and the unlabelled pool. Groups without any label
    join the unlabelled pool first; the shares hold for the others.

    Args:
        records: what the site has.
        generator: where the randomness comes from.
        site: the site's name, for the message.
        validation: share of the images for validation.
        test: share of the images for testing; the rest is for training.
        labelled: share of the training images that keep their label in training; the others get ``labelled=False``.

    Returns:
        The records in their order, with ``split`` and ``labelled`` set.

    Raises:
        DataError: if the site has fewer groups than there are parts with a positive share.
        ValueError: if a share is outside [0, 1] or nothing remains for training.
    """
    shares = part_shares(validation, test, labelled)
    known = [members for members in whole_groups(records) if any(records[index].label for index in members)]
    pool = [records[index] for index in sorted(index for members in known for index in members)]
    needed = [name for name, share in shares.items() if share > 0]
    if len(known) < len(needed):
        raise DataError(
            f"{site} has {len(known)} groups (patients, lesions or single images) with a label, needs at least one for "
            f"each of {', '.join(needed)}; give it more images or set the share of a part to 0"
        )
    counts = shares_to_counts(list(shares.values()), len(pool), least=1)
    parts = divide_into_counts(pool, dict(zip(shares, counts, strict=True)), generator)
    part_of = {record: part for part, members in parts.items() for record in members}
    return tuple(with_part(record, part_of.get(record, "unlabelled")) for record in records)


def part_shares(validation: float, test: float, labelled: float) -> dict[str, float]:
    """The share of all images of each part: ``labelled`` and ``unlabelled`` training images, ``val`` and ``test``.

    Args:
        validation: share of the images for validation.
        test: share of the images for testing; the rest is for training.
        labelled: share of the training images that keep their label in training.

    Raises:
        ValueError: if a share is outside [0, 1] or nothing remains for training.
    """
    training = 1.0 - require_fraction(validation, "validation") - require_fraction(test, "test")
    if training <= 0:
        raise ValueError(f"validation and test must leave something for training, got {validation} + {test}")
    return {
        "labelled": training * require_fraction(labelled, "labelled"),
        "unlabelled": training * (1.0 - labelled),
        "val": validation,
        "test": test,
    }


def with_part(record: Record, part: str) -> Record:
    """The record in a part of :func:`part_shares`: its split, and whether training may use its label."""
    if part in ("val", "test"):
        return replace(record, split=part, labelled=True)
    return replace(record, split="train", labelled=part == "labelled")


def stratified_draw(
    records: Sequence[Record], images: int, generator: np.random.Generator
) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """Draw records so that those drawn and the others have the classes in the same proportions.

    A group counts as of the class that most of its images have. Each class gives its share, by largest remainders.

    Args:
        records: what is to be drawn from.
        images: how many, about where groups are whole.
        generator: where the randomness comes from.

    Returns:
        The drawn records and the others, both in their order.

    Raises:
        ValueError: if more images are wanted than there are, or fewer than none.

    Example:
        >>> ten = [Record(str(i), "nv" if i < 8 else "mel") for i in range(10)]
        >>> drawn, others = stratified_draw(ten, 5, np.random.default_rng(0))
        >>> sorted(record.label for record in drawn), len(others)
        (['mel', 'nv', 'nv', 'nv', 'nv'], 5)
    """
    if not 0 <= images <= len(records):
        raise ValueError(f"cannot draw {images} of {len(records)} records")
    by_class: dict[str, list[int]] = defaultdict(list)
    for members in whole_groups(records):
        by_class[majority(records[index].label for index in members)].extend(members)
    strata = [[records[index] for index in sorted(members)] for _, members in sorted(by_class.items())]
    drawn: set[Record] = set()
    counts = shares_to_counts([len(stratum) for stratum in strata], images) if strata else []
    for stratum, count in zip(strata, counts, strict=True):
        drawn.update(divide_into_counts(stratum, {"drawn": count}, generator)["drawn"])
    return tuple(r for r in records if r in drawn), tuple(r for r in records if r not in drawn)


def stratified_train_val(
    records: Sequence[Record], training: float, generator: np.random.Generator
) -> tuple[Record, ...]:
    """Divide records between training and validation so that both have the classes in the same proportions.

    Groups stay whole, see :func:`stratified_draw`; all training records keep their label.

    Args:
        records: what is to be divided.
        training: share of the images for training, above 0 and below 1.
        generator: where the randomness comes from.

    Returns:
        The records in their order, with ``split`` ``train`` or ``val``.

    Raises:
        DataError: if there are too few images for both.
        ValueError: if the share leaves nothing for one of them.

    Example:
        >>> ten = [Record(str(i), "nv" if i < 5 else "mel") for i in range(10)]
        >>> divided = stratified_train_val(ten, 0.8, np.random.default_rng(0))
        >>> sorted((record.label, record.split) for record in divided if record.split == "val")
        [('mel', 'val'), ('nv', 'val')]
    """
    if not 0 < training < 1:
        raise ValueError(f"training must be above 0 and below 1, got {training}")
    train = set(stratified_draw(records, round(training * len(records)), generator)[0])
    if not 0 < len(train) < len(records):
        raise DataError(f"{len(records)} images cannot be divided between training and validation; take more images")
    return tuple(replace(r, split="train" if r in train else "val", labelled=True) for r in records)
