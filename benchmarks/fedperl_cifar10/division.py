"""CIFAR-10 and Fashion-MNIST, divided as in FedMatch's experiments: few labelled images per client, many unlabelled.

Sources: W. Jeong, J. Yoon, E. Yang, S. J. Hwang, "Federated Semi-Supervised Learning with Inter-Client Consistency &
Disjoint Learning", ICLR 2021, and its published code (labels at client, batch IID and batch non-IID). FedMatch's Fashion-
MNIST arrives as a stream. A manifest has no arrival times, so here all images are available from the first round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks.fedperl_cifar10.fashion_mnist import FASHION_MNIST_CLASSES, read_fashion_mnist
from benchmarks.fedperl_cifar10.published import batches_folder, unpack_cifar10
from benchmarks.plug_in import published_data
from grandrounds.data.manifest import Record
from grandrounds.data.partition.divide import Sites
from grandrounds.data.partition.files import write_partition
from grandrounds.errors import DataError
from grandrounds.protocol.names import SERVER
from grandrounds.seeding import numpy_generator

Distribution = Literal["iid", "non_iid"]
# Shares of the classes, counted from a client's own: its own, the next, ..., the one before it.
CLASS_SHARES = (0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15)


class Sizes(NamedTuple):
    """Numbers of sites and of images: ``validation`` at the server, ``test`` in all, the rest at each site.

    ``labelled_per_class`` counts the labelled images of a class, ``unlabelled`` about the unlabelled ones (None: all).
    """

    sites: int
    validation: int
    test: int
    labelled_per_class: int = 5
    unlabelled: int | None = None


SIZES = {"cifar10": Sizes(100, 2000, 2000), "fashion_mnist": Sizes(10, 3500, 3500)}


def make_fedmatch_partition(
    dataset: str, root: Path, out: Path, distribution: Distribution, images: Path, seed: int = 1, **sizes: Any
) -> dict[str, Any]:
    if dataset == "cifar10":
        packed = batches_folder(root) is not None
        reader = published_data().cifar10
        records, source = reader.read_cifar10(unpack_cifar10(root, images) if packed else root)
        classes = reader.CIFAR10_CLASSES
    else:
        records, source = read_fashion_mnist(root, images)
        classes = FASHION_MNIST_CLASSES
    chosen = SIZES[dataset]._replace(**sizes)
    divided, missing = fedmatch_clients(records, classes, distribution, chosen, seed)
    facts = {"dataset": dataset, "scheme": "fedmatch", "distribution": distribution, "seed": seed}
    facts |= {"labelled_per_class": chosen.labelled_per_class, "unlabelled": chosen.unlabelled}
    return write_partition(divided, out, dataset, source, classes, {**facts, "used_up": missing})


def fedmatch_clients(
    records: Sequence[Record], classes: Sequence[str], distribution: Distribution, sizes: Sizes, seed: int
) -> tuple[Sites, dict[str, int]]:
    """Divide a data set as FedMatch does, splits included.

    All images are shuffled once; the first are for training, the next for testing, the last for validation. Every client
    takes its labelled images of each class, one client after the other; the rest is unlabelled. ``iid`` gives every client
    the same share of each class. In ``non_iid`` client k draws classes with half of the mass on class k mod 10, 0.15 on
    each of its two neighbours, and the rest on the others, and takes the next images of these classes. A class that is
    used up is not replaced, as in the published code. FedMatch tests one model on all test images; here all sites have
    shares of one size, so that the mean accuracy over sites is the accuracy over all.

    Returns:
        The sites' records, and the number of images of each class that were drawn in vain.
    """
    held_out = sizes.validation + sizes.test
    if len(records) <= held_out:
        raise DataError(f"{len(records)} images cannot give {held_out} for testing and validation and train on others")
    order = numpy_generator(seed, "partition", "fedmatch").permutation(len(records))
    shuffled = [records[index] for index in order]
    training = len(records) - held_out
    by_class = {name: [r for r in shuffled[:training] if r.label == name] for name in classes}
    labelled = _take_labelled(by_class, sizes)
    counts = np.array([len(members) for members in by_class.values()])
    wanted = _wanted(distribution, counts, sizes, numpy_generator(seed, "partition", "fedmatch", "classes"))
    unlabelled = _take_unlabelled(by_class, wanted)
    each = sizes.test // sizes.sites
    sites = {}
    for number in range(sizes.sites):
        start = training + number * each
        test = [replace(record, split="test") for record in shuffled[start : start + each]]
        sites[f"site-{number + 1}"] = (*labelled[number], *unlabelled[number], *test)
    held = tuple(replace(record, split="val") for record in shuffled[training + sizes.test :])
    missing = np.maximum(wanted.sum(axis=0) - counts, 0)
    return {SERVER: held, **sites}, {name: int(count) for name, count in zip(classes, missing, strict=True) if count}


def _take_labelled(by_class: dict[str, list[Record]], sizes: Sizes) -> list[list[Record]]:
    """The labelled images of each client, taken from the front of each class."""
    each, needed = sizes.labelled_per_class, sizes.labelled_per_class * sizes.sites
    clients: list[list[Record]] = [[] for _ in range(sizes.sites)]
    for name, members in by_class.items():
        if len(members) < needed:
            raise DataError(f"{sizes.sites} sites need {needed} labelled images of {name}, not {len(members)}")
        for number, client in enumerate(clients):
            client += members[number * each : (number + 1) * each]
        del members[:needed]
    return clients


def _wanted(distribution: Distribution, counts: np.ndarray, sizes: Sizes, generator: np.random.Generator) -> np.ndarray:
    """How many unlabelled images of each class each client wants, shape ``(sites, classes)``."""
    if distribution == "iid":
        each = counts // sizes.sites
        if sizes.unlabelled is not None:
            each = np.minimum(each, sizes.unlabelled // len(counts))
        return np.tile(each, (sizes.sites, 1))
    draws = int(counts.sum()) // sizes.sites
    draws = draws if sizes.unlabelled is None else min(draws, sizes.unlabelled)
    return np.stack([generator.multinomial(draws, np.roll(CLASS_SHARES, client)) for client in range(sizes.sites)])


def _take_unlabelled(by_class: dict[str, list[Record]], wanted: np.ndarray) -> list[list[Record]]:
    clients = []
    for first, count in zip(wanted.cumsum(axis=0) - wanted, wanted, strict=True):
        taken = [members[a : a + n] for members, a, n in zip(by_class.values(), first, count, strict=True)]
        clients.append([replace(record, labelled=False) for part in taken for record in part])
    return clients
