"""FedMatch's way of dividing a data set between clients: few labelled images each, many unlabelled, one shuffle for all.

Source: W. Jeong, J. Yoon, E. Yang, S. J. Hwang, "Federated Semi-Supervised Learning with Inter-Client Consistency &
Disjoint Learning", ICLR 2021, and its published code (labels at client, batch IID and batch non-IID).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from grandrounds.data.manifest import Record
from grandrounds.data.partition.divide import SERVER, Sites
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.seeding import numpy_generator

Distribution = Literal["iid", "non_iid"]
ValidationAt = Literal["server", "sites"]

# Shares of the classes, counted from a client's own: its own, the next, ..., the one before it.
CLASS_SHARES = (0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15)


@dataclass(frozen=True)
class FedMatchSizes:
    """How many images go where.

    Attributes:
        sites: number of clients.
        validation: validation images in all.
        test: test images in all, the same number at every site.
        labelled_per_class: labelled images of each class at each site.
        unlabelled: unlabelled images at each site, about; None divides all that there are.
        validation_at: ``server`` gives it all validation images, ``sites`` divides them evenly.

    Raises:
        ConfigurationError: if a number is too small, or test (or validation at the sites) images cannot be divided evenly.
    """

    sites: int
    validation: int
    test: int
    labelled_per_class: int = 5
    unlabelled: int | None = None
    validation_at: ValidationAt = "server"

    def __post_init__(self) -> None:
        least = (("sites", 1), ("validation", 0), ("test", 0), ("labelled_per_class", 1))
        for name, smallest in least:
            if getattr(self, name) < smallest:
                raise ConfigurationError(f"{name} must be at least {smallest}, got {getattr(self, name)}")
        if self.unlabelled is not None and self.unlabelled < 0:
            raise ConfigurationError(f"unlabelled must be at least 0, got {self.unlabelled}")
        if self.validation_at not in get_args(ValidationAt):
            raise ConfigurationError(f"validation_at must be server or sites, got {self.validation_at!r}")
        for name in ("test", "validation") if self.validation_at == "sites" else ("test",):
            rest = getattr(self, name) % self.sites
            if rest:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)}, which {self.sites} sites cannot share evenly; take "
                    f"{getattr(self, name) - rest}: then the mean over sites is the mean over images"
                )


def fedmatch_clients(
    records: Sequence[Record], classes: Sequence[str], distribution: Distribution, sizes: FedMatchSizes, seed: int
) -> tuple[Sites, dict[str, int]]:
    """Divide a data set as FedMatch does, splits included.

    All images are shuffled once; the first are for training, the next for testing, the last for validation. Of each class
    every client takes its labelled images, one client after the other. What remains is unlabelled: ``iid`` gives every
    client the same share of each class; in ``non_iid`` client k draws classes with half of the mass on class k mod 10, 0.15
    on each of its two neighbours, and the rest on the others, and takes the next images of the classes it drew. When a class
    is used up the client goes without, as in the published code.

    FedMatch tests one model on all test images. Here every site has its share of them, disjoint from the others' and of the
    same size, so that the mean accuracy over sites is the accuracy over all. The validation images are the server's, or
    shared likewise.

    Args:
        records: the data set; every record has a label of ``classes``, and no two are of one patient or lesion.
        classes: the vocabulary, ten classes for ``non_iid``.
        distribution: of the unlabelled images.
        sizes: how many go where.
        seed: of all random choices.

    Returns:
        The records of ``site-1`` to ``site-N`` and, if it validates, ``server``; and how many images of each class were
        drawn when the class was used up.

    Raises:
        DataError: if there are too few images.
    """
    held_out = sizes.validation + sizes.test
    if len(records) <= held_out:
        raise DataError(f"{len(records)} images cannot give {held_out} for testing and validation and train on others")
    order = numpy_generator(seed, "partition", "fedmatch").permutation(len(records))
    shuffled = [records[index] for index in order]
    training = len(records) - held_out
    by_class = {name: [r for r in shuffled[:training] if r.label == name] for name in classes}
    labelled = _take_labelled(by_class, sizes)
    generator = numpy_generator(seed, "partition", "fedmatch", "classes")
    wanted = _wanted(distribution, by_class, sizes, generator)
    unlabelled, missing = _take_unlabelled(by_class, wanted)
    test = _shares(shuffled[training : training + sizes.test], "test", sizes.sites)
    held = shuffled[training + sizes.test :]
    at_sites = sizes.validation_at == "sites"
    validation = _shares(held if at_sites else [], "val", sizes.sites)
    sites = {
        f"site-{number}": tuple(record for part in parts for record in part)
        for number, parts in enumerate(zip(labelled, unlabelled, validation, test, strict=True), 1)
    }
    server: Sites = {} if at_sites or not held else {SERVER: tuple(replace(r, split="val") for r in held)}
    return server | sites, {name: int(count) for name, count in zip(classes, missing, strict=True) if count}


def _take_labelled(by_class: dict[str, list[Record]], sizes: FedMatchSizes) -> list[list[Record]]:
    """The labelled images of each client, taken from the front of each class."""
    count = sizes.labelled_per_class
    clients: list[list[Record]] = [[] for _ in range(sizes.sites)]
    for name, members in by_class.items():
        if len(members) < count * sizes.sites:
            raise DataError(
                f"{sizes.sites} sites need {count * sizes.sites} labelled images of {name}, there are {len(members)} for "
                "training; lower sites, labelled_per_class, test or validation"
            )
        for client in clients:
            client += members[:count]
            del members[:count]
    return clients


def _wanted(
    distribution: Distribution,
    by_class: dict[str, list[Record]],
    sizes: FedMatchSizes,
    generator: np.random.Generator,
) -> np.ndarray:
    """How many unlabelled images of each class each client wants, shape ``(sites, classes)``."""
    counts = np.array([len(members) for members in by_class.values()])
    if distribution == "iid":
        each = counts // sizes.sites
        if sizes.unlabelled is not None:
            each = np.minimum(each, sizes.unlabelled // len(counts))
        return np.tile(each, (sizes.sites, 1))
    if len(counts) != len(CLASS_SHARES):
        raise DataError(f"non_iid is made for {len(CLASS_SHARES)} classes, the data set has {len(counts)}; take iid")
    draws = int(counts.sum()) // sizes.sites
    draws = draws if sizes.unlabelled is None else min(draws, sizes.unlabelled)
    return np.stack([generator.multinomial(draws, np.roll(CLASS_SHARES, client)) for client in range(sizes.sites)])


def _take_unlabelled(by_class: dict[str, list[Record]], wanted: np.ndarray) -> tuple[list[list[Record]], np.ndarray]:
    """The unlabelled images of each client, and how many of each class there were too few."""
    starts = wanted.cumsum(axis=0) - wanted
    clients = []
    for first, count in zip(starts, wanted, strict=True):
        taken = [members[a : a + n] for members, a, n in zip(by_class.values(), first, count, strict=True)]
        clients.append([replace(record, labelled=False) for part in taken for record in part])
    there = np.array([len(members) for members in by_class.values()])
    return clients, np.maximum(wanted.sum(axis=0) - there, 0)


def _shares(records: Sequence[Record], split: str, sites: int) -> list[list[Record]]:
    each = len(records) // sites
    return [[replace(r, split=split) for r in records[n * each : (n + 1) * each]] for n in range(sites)]
