"""CIFAR-10 and Fashion-MNIST, divided as in FedMatch's experiments, on which FedPerl's proof of concept runs.

Sources: W. Jeong, J. Yoon, E. Yang, S. J. Hwang, "Federated Semi-Supervised Learning with Inter-Client Consistency &
Disjoint Learning", ICLR 2021; T. Bdair, N. Navab, S. Albarqouni, FedPerl, MELBA 2022, Table 1.

FedMatch's Fashion-MNIST arrives at its clients as a stream. A manifest does not say when an image arrives, so here all
images are there from the first round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from benchmarks.fedmatch_data.division import Distribution, FedMatchSizes, ValidationAt, fedmatch_clients
from benchmarks.fedmatch_data.fashion_mnist import (
    FASHION_MNIST_CLASSES,
    UNPACKED,
    read_fashion_mnist,
    unpack_fashion_mnist,
)
from grandrounds.data.datasets.cifar10 import CIFAR10_CLASSES, batches_folder, read_cifar10, unpack_cifar10
from grandrounds.data.manifest import Record
from grandrounds.data.partition.files import write_partition
from grandrounds.errors import ConfigurationError

FedMatchDataset = Literal["cifar10", "fashion_mnist"]

STREAMING = "streaming"


def make_fedmatch_partition(
    dataset: str,
    root: Path | str,
    out: Path | str,
    distribution: str,
    sites: int | None = None,
    seed: int = 1,
    *,
    labelled_per_class: int = 5,
    unlabelled: int | None = None,
    validation: int | None = None,
    test: int | None = None,
    validation_at: ValidationAt = "server",
    unpack_to: Path | str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Divide CIFAR-10 or Fashion-MNIST between FedMatch's clients and write their manifests and site configurations.

    Args:
        dataset: ``cifar10`` (100 clients, 2,000 test and 2,000 validation images) or ``fashion_mnist`` (10 clients, 3,500
            of each).
        root: the data set's folder: as it is published, or with what was unpacked from it.
        out: the partition's folder.
        distribution: of the unlabelled images, ``iid`` or ``non_iid``.
        sites: number of clients; None takes the data set's.
        seed: of all random choices.
        labelled_per_class: labelled images of each class at each site.
        unlabelled: unlabelled images at each site, about; None divides all that there are.
        validation: validation images in all; None takes the data set's number.
        test: test images in all; None takes the data set's number.
        validation_at: ``server`` gives all validation images to the party ``server``; ``sites`` divides them.
        unpack_to: folder for the images of a data set as it is published, which a manifest cannot point into.
        overwrite: replace another partition in ``out``.

    Returns:
        What ``partition.json`` says, see :func:`~grandrounds.data.partition.files.write_partition`. ``used_up`` in it is
        how many images of each class were drawn in vain because there were no more.

    Raises:
        ConfigurationError: if the arguments do not fit together, or ``out`` holds something else.
        DataError: if the data set is not as it must be or too small for what is asked.
    """
    kind = _kind(dataset, distribution)
    records, images = _read(dataset, Path(root), unpack_to)
    own = FedMatchSizes(
        sites=kind.sites if sites is None else sites,
        validation=kind.held_out if validation is None else validation,
        test=kind.held_out if test is None else test,
        labelled_per_class=labelled_per_class,
        unlabelled=unlabelled,
        validation_at=validation_at,
    )
    chosen: Distribution = "iid" if distribution == "iid" else "non_iid"
    divided, missing = fedmatch_clients(records, kind.classes, chosen, own, seed)
    facts = {"dataset": dataset, "scheme": "fedmatch", "distribution": distribution, "seed": seed}
    description = {**facts, **_described(own), "used_up": missing}
    return write_partition(divided, out, dataset, images, kind.classes, description, overwrite=overwrite)


def _described(sizes: FedMatchSizes) -> dict[str, Any]:
    names = ("labelled_per_class", "unlabelled", "validation_at")
    return {name: getattr(sizes, name) for name in names}


class _Kind(NamedTuple):
    """FedMatch's numbers for a data set; as many images are held out for testing as for validation."""

    classes: tuple[str, ...]
    sites: int
    held_out: int


def _kind(dataset: str, distribution: str) -> _Kind:
    if dataset not in get_args(FedMatchDataset):
        raise ConfigurationError(f"dataset must be one of {', '.join(get_args(FedMatchDataset))}, got {dataset!r}")
    if distribution == STREAMING:
        raise ConfigurationError(
            f"distribution {STREAMING} is not there: a manifest does not say when an image arrives; take non_iid, which "
            "gives the same kind of clients all their images from the first round"
        )
    if distribution not in get_args(Distribution):
        raise ConfigurationError(
            f"distribution must be one of {', '.join(get_args(Distribution))}, got {distribution!r}"
        )
    return _Kind(CIFAR10_CLASSES, 100, 2000) if dataset == "cifar10" else _Kind(FASHION_MNIST_CLASSES, 10, 3500)


def _read(dataset: str, root: Path, unpack_to: Path | str | None) -> tuple[tuple[Record, ...], Path]:
    """The records, from where they are or from what is unpacked first."""
    if dataset == "cifar10":
        packed, unpack, read = batches_folder(root) is not None, unpack_cifar10, read_cifar10
    else:
        packed = root.is_dir() and not (root / UNPACKED).is_file()
        unpack, read = unpack_fashion_mnist, read_fashion_mnist
    if not packed:
        return read(root)
    if unpack_to is None:
        raise ConfigurationError(
            f"{root} has {dataset} as it is published, which no manifest can point into; name a folder for the images "
            "(unpack_to)"
        )
    return read(unpack(root, unpack_to))
