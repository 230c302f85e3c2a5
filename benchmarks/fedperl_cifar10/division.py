"""CIFAR-10 and Fashion-MNIST, divided as in FedMatch's experiments: few labelled images per client, many unlabelled.

Sources: W. Jeong, J. Yoon, E. Yang, S. J. Hwang, "Federated Semi-Supervised Learning with Inter-Client Consistency &
Disjoint Learning", ICLR 2021, and its published code (labels at client, batch IID and batch non-IID). FedMatch's Fashion-
MNIST arrives as a stream; a manifest does not say when an image arrives, so here all images are there from the first
round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks.fedperl_cifar10.fashion_mnist import FASHION_MNIST_CLASSES, read_fashion_mnist
from grandrounds.data.datasets.cifar10 import CIFAR10_CLASSES, batches_folder, read_cifar10, unpack_cifar10
from grandrounds.data.manifest import Record
from grandrounds.data.partition.divide import SERVER, Sites
from grandrounds.data.partition.files import write_partition
from grandrounds.errors import DataError
from grandrounds.seeding import numpy_generator

Distribution = Literal["iid", "non_iid"]
# Shares of the classes, counted from a client's own: its own, the next, ..., the one before it.
CLASS_SHARES = (0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15)


class Sizes(NamedTuple):
    """How many images go where.

    Attributes:
        sites: number of clients.
        validation: validation images, all at the server.
        test: test images in all, the same number at every site.
        labelled_per_class: labelled images of each class at each site.
        unlabelled: unlabelled images at each site, about; None divides all that there are.
    """

    sites: int
    validation: int
    test: int
    labelled_per_class: int = 5
    unlabelled: int | None = None


CLASSES = {"cifar10": CIFAR10_CLASSES, "fashion_mnist": FASHION_MNIST_CLASSES}
SIZES = {"cifar10": Sizes(100, 2000, 2000), "fashion_mnist": Sizes(10, 3500, 3500)}


def make_fedmatch_partition(
    dataset: str, root: Path, out: Path, distribution: Distribution, images: Path, seed: int = 1, **sizes: Any
) -> dict[str, Any]:
    """Divide a data set between FedMatch's clients and write their manifests and site configurations."""
    if dataset == "cifar10":
        packed = batches_folder(root) is not None
        records, source = read_cifar10(unpack_cifar10(root, images) if packed else root)
    else:
        records, source = read_fashion_mnist(root, images)
    chosen, classes = SIZES[dataset]._replace(**sizes), CLASSES[dataset]
    divided, missing = fedmatch_clients(records, classes, distribution, chosen, seed)
    facts = {"dataset": dataset, "scheme": "fedmatch", "distribution": distribution, "seed": seed}
    facts |= {"labelled_per_class": chosen.labelled_per_class, "unlabelled": chosen.unlabelled}
    return write_partition(divided, out, dataset, source, classes, {**facts, "used_up": missing})


def fedmatch_clients(
    records: Sequence[Record], classes: Sequence[str], distribution: Distribution, sizes: Sizes, seed: int
) -> tuple[Sites, dict[str, int]]:
    """Divide a data set as FedMatch does, splits included.

    All images are shuffled once; the first are for training, the next for testing, the last for validation. Of each class
    every client takes its labelled images, one client after the other. What remains is unlabelled: ``iid`` gives every
    client the same share of each class; in ``non_iid`` client k draws classes with half of the mass on class k mod 10, 0.15
    on each of its two neighbours, and the rest on the others, and takes the next images of the classes it drew. When a class
    is used up the client goes without, as in the published code. FedMatch tests one model on all test images; here every
    site has a share of the same size, so that the mean accuracy over sites is the accuracy over all.
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
    count = sizes.labelled_per_class
    clients: list[list[Record]] = [[] for _ in range(sizes.sites)]
    for name, members in by_class.items():
        if len(members) < count * sizes.sites:
            raise DataError(
                f"{sizes.sites} sites need {count * sizes.sites} labelled images of {name}, not {len(members)}"
            )
        for client in clients:
            client += members[:count]
            del members[:count]
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
