"""From a data set's name to simulated hospitals on disk: read, divide between sites, split at each site, write.

The command line and the benchmarks make their partitions here, so that the same arguments give the same manifests in
both. Every step has a random stream of its own: another choice of splits leaves the sites as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from grandrounds.data.fedperl_clients import CLIENTS, fedperl_clients
from grandrounds.data.ham10000 import HAM10000_CLASSES, read_ham10000
from grandrounds.data.manifest import Record, read_manifest
from grandrounds.data.partition import Sites, by_source, dirichlet, iid
from grandrounds.data.partition_files import write_partition
from grandrounds.data.splits import assign_splits
from grandrounds.errors import ConfigurationError
from grandrounds.ordering import natural_sorted
from grandrounds.seeding import numpy_generator

Dataset = Literal["ham10000", "manifest"]
Scheme = Literal["sites", "dirichlet", "iid", "fedperl"]

SKIN = "skin"


class ReadDataset(NamedTuple):
    """What a recipe needs to know of a data set.

    Attributes:
        records: all images.
        images: the folder or archive they are in.
        name: how jobs call the data set.
        classes: the vocabulary.
    """

    records: tuple[Record, ...]
    images: Path
    name: str
    classes: tuple[str, ...]


def make_partition(
    dataset: str,
    root: Path | str,
    scheme: str,
    sites: int,
    out: Path | str,
    *,
    labelled: float = 0.25,
    validation: float = 0.125,
    test: float = 0.375,
    alpha: float = 0.5,
    seed: int = 1,
    overwrite: bool = False,
    manifest: Path | str | None = None,
    dataset_name: str | None = None,
    classes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Divide a data set between simulated hospitals and write their manifests and site configurations.

    Args:
        dataset: ``ham10000``, or ``manifest`` for any other images with a manifest.
        root: where the images are: for ``ham10000`` the data set's folder, for ``manifest`` the images' folder or archive.
        scheme: ``sites`` divides by source, ``dirichlet`` by class with concentration ``alpha``, ``iid`` at random;
            ``fedperl`` makes the ten clients of that paper, splits included.
        sites: number of sites.
        out: the partition's folder.
        labelled: share of each site's training images that keep their label.
        validation: share of each site's images for validation.
        test: share of each site's images for testing; the rest is for training.
        alpha: concentration for ``dirichlet``: the smaller, the more the sites differ.
        seed: of all random choices.
        overwrite: replace another partition in ``out``.
        manifest: the table of a ``manifest`` data set; its splits are not used.
        dataset_name: how jobs call a ``manifest`` data set.
        classes: the vocabulary of a ``manifest`` data set; the labels that occur, in natural order, by default.

    Returns:
        What ``partition.json`` says, see :func:`~grandrounds.data.partition_files.write_partition`.

    Raises:
        ConfigurationError: if the arguments do not fit together, or ``out`` holds something else.
        DataError: if the data set is not as it must be or too small for what is asked.
    """
    _check_arguments(dataset, scheme, sites, labelled, validation, test, alpha)
    read = _read(dataset, Path(root), manifest, dataset_name, classes)
    divided = _divide(read.records, scheme, sites, alpha, seed)
    description: dict[str, Any] = {"dataset": dataset, "scheme": scheme, "seed": seed}
    if scheme == "dirichlet":
        description["alpha"] = alpha
    if scheme != "fedperl":
        shares = {"labelled": labelled, "validation": validation, "test": test}
        description |= shares
        divided = {
            site: assign_splits(records, numpy_generator(seed, "partition", "splits", site), site=site, **shares)
            for site, records in divided.items()
        }
    return write_partition(divided, out, read.name, read.images, read.classes, description, overwrite=overwrite)


def _divide(records: Sequence[Record], scheme: str, sites: int, alpha: float, seed: int) -> Sites:
    generator = numpy_generator(seed, "partition", scheme)
    if scheme == "fedperl":
        return fedperl_clients(records, generator)
    if scheme == "dirichlet":
        return dirichlet(records, sites, alpha, generator)
    if scheme == "iid":
        return iid(records, sites, generator)
    if not all(record.source for record in records):
        raise ConfigurationError("scheme sites needs the source of every image; fill in the column source or take iid")
    return by_source(records, sites, generator)


def _read(
    dataset: str, root: Path, manifest: Path | str | None, name: str | None, classes: Sequence[str] | None
) -> ReadDataset:
    if not root.exists():
        raise ConfigurationError(f"root {root} does not exist; name the folder of the images")
    if dataset == "ham10000":
        if manifest is not None or name is not None or classes is not None:
            raise ConfigurationError("ham10000 has its own manifest, name (skin) and classes; leave these options out")
        records, images = read_ham10000(root)
        return ReadDataset(records, images, SKIN, HAM10000_CLASSES)
    if manifest is None or not name:
        raise ConfigurationError("data set manifest needs the manifest's file and the name by which jobs call the data")
    records = read_manifest(manifest, classes).records
    vocabulary = classes or natural_sorted({record.label for record in records if record.label})
    return ReadDataset(records, root, name, tuple(vocabulary))


def _check_arguments(
    dataset: str, scheme: str, sites: int, labelled: float, validation: float, test: float, alpha: float
) -> None:
    for field, name, known in (("dataset", dataset, get_args(Dataset)), ("scheme", scheme, get_args(Scheme))):
        if name not in known:
            raise ConfigurationError(f"{field} must be one of {', '.join(known)}, got {name!r}")
    if sites < 1:
        raise ConfigurationError(f"sites must be at least 1, got {sites}")
    if scheme == "fedperl" and sites != len(CLIENTS):
        raise ConfigurationError(f"scheme fedperl has {len(CLIENTS)} sites, got {sites}; set sites to {len(CLIENTS)}")
    if not alpha > 0:
        raise ConfigurationError(f"alpha must be above 0, got {alpha}")
    for field, share in (("labelled", labelled), ("validation", validation), ("test", test)):
        if not 0 <= share <= 1:
            raise ConfigurationError(f"{field} must be between 0 and 1, got {share}")
    if not validation + test < 1:
        raise ConfigurationError(f"validation and test must leave something for training, got {validation} + {test}")
