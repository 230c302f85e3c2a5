"""Training, validation and test images of one site, and the training images that keep their label; groups stay whole."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from grandrounds.checks import require_fraction
from grandrounds.data.manifest import Record
from grandrounds.data.partition.groups import TooFewImages, divide_into_counts, majority, shares_to_counts, whole_groups
from grandrounds.errors import DataError
from grandrounds.protocol.tasks import FINDINGS


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

    The default shares are FedPerl's (Bdair et al., MICCAI 2021), see :func:`part_shares`. Groups stay whole, also between
    the labelled and the unlabelled pool. Groups without any label join the unlabelled pool; the shares hold for the others.

    Returns:
        The records in their order, with ``split`` and ``labelled`` set.

    Raises:
        DataError: if the site has fewer groups than there are parts with a positive share; ``site`` is named.
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
    counts = shares_to_counts(list(shares.values()), len(pool), minimum=1)
    parts = divide_into_counts(pool, dict(zip(shares, counts, strict=True)), generator)
    part_of = {record: part for part, members in parts.items() for record in members}
    return tuple(with_part(record, part_of.get(record, "unlabelled")) for record in records)


def part_shares(validation: float, test: float, labelled: float) -> dict[str, float]:
    """The share of all images of each part: ``labelled`` and ``unlabelled`` training images, ``val`` and ``test``.

    Validation and test are shares of all images, the rest is for training; ``labelled`` is a share of the training images.

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
    """Divide records between training (the share ``training``) and validation, with the classes in the same proportions.

    Groups stay whole, see :func:`stratified_draw`; all training records keep their label.

    Returns:
        The records in their order, with ``split`` ``train`` or ``val``.

    Raises:
        DataError: if there are too few images for both.

    Example:
        >>> ten = [Record(str(i), "nv" if i < 5 else "mel") for i in range(10)]
        >>> divided = stratified_train_val(ten, 0.8, np.random.default_rng(0))
        >>> sorted((record.label, record.split) for record in divided if record.split == "val")
        [('mel', 'val'), ('nv', 'val')]
    """
    train = set(stratified_draw(records, round(training * len(records)), generator)[0])
    if not 0 < len(train) < len(records):
        raise DataError(f"{len(records)} images cannot be divided between training and validation; take more images")
    return tuple(replace(r, split="train" if r in train else "val", labelled=True) for r in records)


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

    A patient counts as of the rarest class among the patient's images. Records in split ``test`` stay there with all of
    their patients; the shares are of the others. The default shares are those of Jimenez-Sanchez et al., "Memory-aware
    curriculum federated learning for breast cancer classification", 2023, whose code divides image by image.

    Returns:
        The records in their order, with ``split`` and ``labelled`` set.

    Raises:
        DataError: if a part with a positive share gets no image; ``site`` is named.
        ValueError: if a share is outside [0, 1] or nothing remains for training.

    Example:
        >>> ten = [Record(str(i), "malignant" if i < 5 else "benign") for i in range(10)]
        >>> found = assign_stratified(ten, np.random.default_rng(0), site="a", validation=0.2, test=0.2)
        >>> sorted(record.label for record in found if record.split == "test")
        ['benign', 'malignant']
    """
    shares = part_shares(validation, test, labelled)
    part_of: dict[int, str] = {}
    strata = _strata(records)
    counts = _counts({label: len(members) for label, members in strata.items()}, list(shares.values()))
    for label, members in strata.items():
        own = [records[index] for index in members]
        parts = divide_into_counts(own, dict(zip(shares, counts[label], strict=True)), generator)
        place = {record: index for record, index in zip(own, members, strict=True)}
        part_of |= {place[record]: part for part, taken in parts.items() for record in taken}
    assigned = set(part_of.values())
    for part, share in shares.items():
        if share > 0 and part not in assigned:
            raise TooFewImages(
                f"{site} has too few patients or lesions for a part {part} of {share:.0%}; give it more images"
            )
    return tuple(with_part(record, part_of.get(index, "test")) for index, record in enumerate(records))


def _counts(sizes: Mapping[str, int], shares: Sequence[float]) -> dict[str, list[int]]:
    """The number of images of each part by class; a part without any gets one of the largest class, if that has enough."""
    counts = {label: shares_to_counts(shares, size) for label, size in sizes.items()}
    empty = any(share > 0 and not sum(own[part] for own in counts.values()) for part, share in enumerate(shares))
    largest = max(sizes, key=lambda label: sizes[label], default="")
    if empty and sizes.get(largest, 0) >= sum(share > 0 for share in shares):
        counts[largest] = shares_to_counts(shares, sizes[largest], minimum=1)
    return counts


def keep_labels(
    records: Sequence[Record], images: int, generator: np.random.Generator, site: str
) -> tuple[Record, ...]:
    """Let training use the labels of a number of training images of one site, with the classes in their proportions.

    Returns:
        The records in their order, with ``labelled`` set.

    Raises:
        DataError: if the site has fewer training images with a label; ``site`` is named.

    Example:
        >>> ten = [Record(str(i), "nv" if i < 8 else "mel") for i in range(10)]
        >>> found = keep_labels(ten, 5, np.random.default_rng(0), "site-1")
        >>> sorted(record.label for record in found if record.labelled)
        ['mel', 'nv', 'nv', 'nv', 'nv']
    """
    pool = [record for record in records if record.split == "train" and record.label]
    if images > len(pool):
        raise DataError(f"{site} has {len(pool)} training images with a label, fewer than labelled_images={images}")
    drawn = set(stratified_draw(pool, images, generator)[0])
    return tuple(replace(record, labelled=record in drawn) if record.split == "train" else record for record in records)


def _strata(records: Sequence[Record]) -> Mapping[str, list[int]]:
    """Positions by class or finding, rarest first, without those that are for testing already."""
    classes = [FINDINGS.names_in(record.label) or (record.label,) for record in records]
    counts = Counter(name for names in classes for name in names)
    strata: dict[str, list[int]] = defaultdict(list)
    for members in whole_groups(records):
        if all(records[index].split != "test" for index in members):
            own = {name for index in members for name in classes[index]}
            rarest = min(own, key=lambda name: (counts[name], name))
            strata[rarest].extend(members)
    return {label: sorted(strata[label]) for label in sorted(strata, key=lambda label: (counts[label], label))}


def assign_own(
    records: Sequence[Record],
    generator: np.random.Generator,
    *,
    site: str,
    validation: float = 0.1,
    test: float = 0.2,
    labelled: float = 1.0,
) -> tuple[Record, ...]:
    """As :func:`assign_stratified` for the records with a label; groups without any label are for training.

    Example:
        >>> four = [Record("a", "x"), Record("b", "x"), Record("c", "x"), Record("d")]
        >>> found = assign_own(four, np.random.default_rng(0), site="a", validation=0.3, test=0.3)
        >>> sorted(record.split for record in found), found[3].split
        (['test', 'train', 'train', 'val'], 'train')
    """
    known = sorted(i for members in whole_groups(records) if any(records[j].label for j in members) for i in members)
    assigned = dict(
        zip(
            known,
            assign_stratified(
                [replace(records[index], split="train") for index in known],
                generator,
                site=site,
                validation=validation,
                test=test,
                labelled=labelled,
            ),
            strict=True,
        )
    )
    return tuple(assigned.get(index, with_part(record, "unlabelled")) for index, record in enumerate(records))


def keep_splits(
    records: Sequence[Record],
    generator: np.random.Generator,
    *,
    site: str,
    validation: float = 0.1,
    test: float = 0.0,
    labelled: float = 1.0,
) -> tuple[Record, ...]:
    """Keep the splits of the records; a site without validation images gets the share ``validation`` of its training images.

    ``labelled`` is the share of the training images with a label that keep it; ``test`` is not used. Patients and lesions
    stay whole.

    Raises:
        DataError: if there is no training image, or too few for validation; ``site`` is named.
    """
    training = [record for record in records if record.split == "train"]
    if not training:
        raise DataError(f"{site} has no training image; the folder or the column split must name some")
    own = {record.split for record in records}
    share = 0.0 if "val" in own else validation
    if share == 0 and labelled == 1:
        return tuple(records)
    drawn = iter(assign_own(training, generator, site=site, validation=share, test=0.0, labelled=labelled))
    return tuple(next(drawn) if record.split == "train" else record for record in records)
