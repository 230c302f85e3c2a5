"""Splits in which a rare class has its share: few patients have cancer, and chance alone may leave a split without one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from grandrounds.data.grouping import whole_groups
from grandrounds.data.manifest import Record
from grandrounds.data.partition.splits import divide_into_counts, part_shares, shares_to_counts, with_part
from grandrounds.errors import DataError


def assign_stratified(
    records: Sequence[Record],
    generator: np.random.Generator,
    *,
    site: str,
    validation: float = 0.1,
    test: float = 0.2,
    labelled: float = 1.0,
) -> tuple[Record, ...]:
    """Give every record of one site its split, class by class; patients and lesions stay whole.

    A patient counts as of the rarest class among the patient's images. The default shares are those of Jimenez-Sanchez et
    al., "Memory-aware curriculum federated learning for breast cancer classification", 2023, whose code divides image by
    image.

    Args:
        records: what the site has. Those in split ``test`` stay there, and with them all of their patients; the shares
            are of the others.
        generator: where the randomness comes from.
        site: the site's name, for the message.
        validation: share of the images for validation.
        test: share of the images for testing; the rest is for training.
        labelled: share of the training images that keep their label in training.

    Returns:
        The records in their order, with ``split`` and ``labelled`` set.

    Raises:
        DataError: if a part with a positive share gets no image.
        ValueError: if a share is outside [0, 1] or nothing remains for training.

    Example:
        >>> ten = [Record(str(i), "malignant" if i < 5 else "benign") for i in range(10)]
        >>> found = assign_stratified(ten, np.random.default_rng(0), site="a", validation=0.2, test=0.2)
        >>> sorted(record.label for record in found if record.split == "test")
        ['benign', 'malignant']
    """
    shares = part_shares(validation, test, labelled)
    part_of: dict[int, str] = {}
    for members in _strata(records).values():
        own = [records[index] for index in members]
        counts = shares_to_counts(list(shares.values()), len(own))
        parts = divide_into_counts(own, dict(zip(shares, counts, strict=True)), generator)
        place = {record: index for record, index in zip(own, members, strict=True)}
        part_of |= {place[record]: part for part, taken in parts.items() for record in taken}
    found = set(part_of.values())
    for part, share in shares.items():
        if share > 0 and part not in found:
            raise DataError(
                f"{site} has too few patients or lesions for a part {part} of {share:.0%}; give it more images or set the "
                "share to 0"
            )
    return tuple(with_part(record, part_of.get(index, "test")) for index, record in enumerate(records))


def _strata(records: Sequence[Record]) -> Mapping[str, list[int]]:
    """Positions by class, rarest first, without those that are for testing already."""
    counts = Counter(record.label for record in records)
    strata: dict[str, list[int]] = defaultdict(list)
    for members in whole_groups(records):
        if all(records[index].split != "test" for index in members):
            rarest = min((records[index].label for index in members), key=lambda label: (counts[label], label))
            strata[rarest].extend(members)
    return {label: sorted(strata[label]) for label in sorted(strata, key=lambda label: (counts[label], label))}
