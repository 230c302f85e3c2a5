"""From a data set's name to simulated hospitals on disk: read, divide between sites, split at each site, write.

The command line and the benchmarks make their partitions here, so that the same arguments give the same manifests in
both. Every step has a random stream of its own: another choice of splits leaves the sites as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from grandrounds.data.datasets.registry import MALIGNANCY, ReadDataset, read_dataset
from grandrounds.data.datasets.rsna_ich import Progress
from grandrounds.data.manifest import Record
from grandrounds.data.partition.config import Choices, PartitionConfig, completed
from grandrounds.data.partition.divide import SERVER, Sites, by_source, deal, dirichlet, draw_server, iid, unseen
from grandrounds.data.partition.fedperl import fedperl_clients, relabel, scaled_sources
from grandrounds.data.partition.files import write_partition
from grandrounds.data.partition.mutual import describe, draw_public_share, everywhere, mutual_sites
from grandrounds.data.partition.splits import assign_splits, stratified_train_val
from grandrounds.data.partition.stratified_splits import assign_stratified
from grandrounds.errors import ConfigurationError
from grandrounds.seeding import numpy_generator


def make_partition(
    dataset: str,
    root: Path | str,
    scheme: str | None,
    sites: int | None,
    out: Path | str,
    *,
    overwrite: bool = False,
    manifest: Path | str | None = None,
    dataset_name: str | None = None,
    classes: Sequence[str] | None = None,
    progress: Progress | None = None,
    **choices: Unpack[Choices],
) -> dict[str, Any]:
    """Divide a data set between simulated hospitals and write their manifests and site configurations.

    Sites have validation and test images of their own, or under ``mdhfl`` one test set. Where sites have equal numbers of
    them, the mean over sites of a mean over images, such as accuracy, is the figure of all images together; that of a rank
    statistic or a score per class, such as AUC, is not.

    FedIRM's ten clients, of which two have labels, are ``iid`` with ``labelled_sites`` ``site-1`` and ``site-2`` under
    ``few_labels``, ``validation`` 0.1 and ``test`` 0.2. For fewer sites of the same size simulate the first ones.

    Args:
        dataset: one of :data:`~grandrounds.data.datasets.registry.Dataset`; ``manifest`` is any images with a manifest.
        root: where the images are: the data set's folder, for ``lesions`` the folder of the four folders (see
            :func:`~grandrounds.data.datasets.skin.joint.read_lesions`), for ``manifest`` the images' folder or archive.
        scheme: ``sites`` divides by source, ``dirichlet`` by class with concentration ``alpha``, ``iid`` at random;
            ``fedperl`` makes the ten clients of that paper, splits included; ``mdhfl`` sites of equal size with a common
            test set, a public set and noisy labels; ``unseen`` one site, ``unseen``, with all images for testing. None is
            the data set's own, see :data:`~grandrounds.data.partition.config.SCHEMES`, and else ``sites``.
        sites: number of sites; None is ten, for ``mdhfl`` four, for ``unseen`` one, for benign and malignant images as many
            as the data set usually has sources.
        out: the partition's folder.
        overwrite: replace another partition in ``out``.
        manifest: the table of a ``manifest`` data set; its splits are not used.
        dataset_name: how jobs call a ``manifest`` data set.
        classes: the vocabulary of a ``manifest`` data set; the labels that occur, in natural order, by default.
        progress: told how far a long reading is (headers read, headers in all).
        choices: see :class:`~grandrounds.data.partition.config.Choices`.

    Returns:
        What ``partition.json`` says, see :func:`~grandrounds.data.partition.files.write_partition`.

    Raises:
        ConfigurationError: if the arguments do not fit together, or ``out`` holds something else.
        DataError: if the data set is not as it must be or too small for what is asked.
    """
    recipe = PartitionConfig.of({"dataset": dataset, "scheme": scheme, "sites": sites, **completed(choices)})
    own: dict[str, Any] = {"manifest": manifest, "name": dataset_name, "classes": classes, "progress": progress}
    read = read_dataset(recipe.dataset, Path(root), recipe.options, recipe.seed, **own)
    return _written(read, recipe, out, overwrite)


def _written(read: ReadDataset, recipe: PartitionConfig, out: Path | str, overwrite: bool) -> dict[str, Any]:
    """Divide what was read and write it."""
    description = {**recipe.description(), **read.facts}
    more: dict[str, Any] = {
        "overwrite": overwrite,
        "windows": read.windows,
        "preprocess": read.preprocess,
        "shared_patients": recipe.client_partition == "slice",
    }
    if recipe.scheme == "mdhfl":
        divided, extra, shared = _divide_mutually(read, recipe)
        description |= extra
        more |= shared
    else:
        divided = relabel(_divide(read.records, recipe), recipe.scenario, recipe.labelled_sites, recipe.few_labels_use)
    if _scales(recipe):
        description["scaled"] = scaled_sources(read.records)
    return write_partition(divided, out, read.name, read.images, read.classes, description, **more)


def _divide_mutually(read: ReadDataset, recipe: PartitionConfig) -> tuple[Sites, dict[str, Any], dict[str, Any]]:
    """Sites for mutual learning, what is to be said of them, and what all of them get."""
    options, records = recipe.mutual, read.records
    share: tuple[Record, ...] = ()
    if options.public == "share":
        share, records = draw_public_share(records, options, recipe.seed)
    made = mutual_sites(
        records, read.classes, options, recipe.sites, recipe.alpha, recipe.validation, recipe.test, recipe.seed
    )
    shared = everywhere(options, made, share, read.images, recipe.seed)
    return made.sites, describe(options, made, read.classes), {"everywhere": shared, "drawn": made.drawn}


def _scales(recipe: PartitionConfig) -> bool:
    """Whether FedPerl's counts may shrink: where the recipe itself has removed images."""
    return recipe.scheme == "fedperl" and recipe.dataset == "lesions" and recipe.options.variant == "clean"


def _divide(records: Sequence[Record], recipe: PartitionConfig) -> Sites:
    """All parties' records, splits included."""
    generator = numpy_generator(recipe.seed, "partition", recipe.scheme)
    if recipe.scheme == "unseen":
        return unseen(records)
    if recipe.scheme == "fedperl":
        divided = fedperl_clients(records, generator, scale=_scales(recipe))
    else:
        divided = _divide_by_shares(records, recipe)
    if recipe.server_training:
        own = numpy_generator(recipe.seed, "partition", "splits", SERVER)
        divided[SERVER] = stratified_train_val(divided[SERVER], recipe.server_training, own)
    return divided


def _divide_by_shares(records: Sequence[Record], recipe: PartitionConfig) -> Sites:
    """The server's records, if it gets any, and those of sites that divide their images by the recipe's shares."""
    divided: Sites = {}
    if recipe.server_images:
        generator = numpy_generator(recipe.seed, "partition", SERVER)
        divided[SERVER], records = draw_server(records, recipe.server_images, generator)
    if recipe.client_partition == "slice":
        generator = numpy_generator(recipe.seed, "partition", "splits")
        split = assign_splits(records, generator, site="the data set", **recipe.shares)
        return divided | deal(split, recipe.sites, numpy_generator(recipe.seed, "partition", "slice"))
    assign = assign_stratified if recipe.dataset in MALIGNANCY else assign_splits
    for site, own in _sites(records, recipe).items():
        generator = numpy_generator(recipe.seed, "partition", "splits", site)
        divided[site] = assign(own, generator, site=site, **recipe.shares)
    return divided


def _sites(records: Sequence[Record], recipe: PartitionConfig) -> Sites:
    generator = numpy_generator(recipe.seed, "partition", recipe.scheme)
    if recipe.scheme == "dirichlet":
        return dirichlet(records, recipe.sites, recipe.alpha, generator)
    if recipe.scheme == "iid":
        return iid(records, recipe.sites, generator)
    if not all(record.source for record in records):
        raise ConfigurationError("scheme sites needs the source of every image; fill in the column source or take iid")
    return by_source(records, recipe.sites, generator)
