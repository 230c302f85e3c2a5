"""From a data set's name to simulated hospitals on disk: read, divide between sites, split at each site, write.

The command line and the benchmarks make their partitions here, so that the same arguments give the same manifests in
both. Every step has a random stream of its own: another choice of splits leaves the sites as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grandrounds.data.datasets import read_dataset
from grandrounds.data.fedperl_clients import fedperl_clients, scaled_sources
from grandrounds.data.manifest import Record
from grandrounds.data.partition import SERVER, Sites, by_source, dirichlet, draw_server, iid, unseen
from grandrounds.data.partition_files import write_partition
from grandrounds.data.recipe import Recipe
from grandrounds.data.scenarios import relabel
from grandrounds.data.splits import assign_splits, stratified_train_val
from grandrounds.errors import ConfigurationError
from grandrounds.seeding import numpy_generator


def make_partition(
    dataset: str,
    root: Path | str,
    scheme: str | None,
    sites: int | None,
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
    variant: str | None = None,
    server_images: int = 0,
    server_training: float | None = None,
    scenario: str = "standard",
    labelled_sites: Sequence[str] | None = None,
    few_labels_use: str | None = None,
) -> dict[str, Any]:
    """Divide a data set between simulated hospitals and write their manifests and site configurations.

    Args:
        dataset: ``ham10000``; ``lesions`` for the four data sets of FedPerl; ``isic2020``; or ``manifest`` for any other
            images with a manifest.
        root: where the images are: the data set's folder, for ``lesions`` the folder of the four folders (see
            :func:`~grandrounds.data.lesion_collection.read_lesions`), for ``manifest`` the images' folder or archive.
        scheme: ``sites`` divides by source, ``dirichlet`` by class with concentration ``alpha``, ``iid`` at random;
            ``fedperl`` makes the ten clients of that paper, splits included; ``unseen`` makes one site, ``unseen``, with
            all images for testing. None is ``unseen`` for ``isic2020`` and else ``sites``.
        sites: number of sites; None is ten, or one for ``unseen``.
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
        variant: of ``lesions``: ``clean`` (default) without the images of HAM10000 in ISIC 2019, patients and lesions kept
            together; ``paper`` with them, image by image. Under ``clean`` the counts of ``fedperl`` are scaled to what
            remains; the description says which (``scaled``).
        server_images: images of the party ``server``, in split ``val``, drawn before the sites are divided. ``fedperl``
            has its own 1000.
        server_training: share of the server's images in split ``train``, stratified by class; None is 0.8 under
            ``server_labels`` and else 0.
        scenario: who has labels, see :func:`~grandrounds.data.scenarios.relabel`.
        labelled_sites: for ``few_labels``: who; None is ``site-2`` and ``site-10`` for ``fedperl``.
        few_labels_use: for ``few_labels``: ``pool`` (default) or ``labelled``.

    Returns:
        What ``partition.json`` says, see :func:`~grandrounds.data.partition_files.write_partition`.

    Raises:
        ConfigurationError: if the arguments do not fit together, or ``out`` holds something else.
        DataError: if the data set is not as it must be or too small for what is asked.
    """
    recipe = Recipe.of(
        {
            "dataset": dataset,
            "scheme": scheme,
            "sites": sites,
            "labelled": labelled,
            "validation": validation,
            "test": test,
            "alpha": alpha,
            "seed": seed,
            "variant": variant,
            "server_images": server_images,
            "server_training": server_training,
            "scenario": scenario,
            "labelled_sites": labelled_sites,
            "few_labels_use": few_labels_use,
        }
    )
    read = read_dataset(recipe.dataset, Path(root), recipe.variant, manifest, dataset_name, classes)
    description = {**recipe.description(), **read.facts}
    if _scales(recipe):
        description["scaled"] = scaled_sources(read.records)
    divided = relabel(_divide(read.records, recipe), recipe.scenario, recipe.labelled_sites, recipe.few_labels_use)
    return write_partition(divided, out, read.name, read.images, read.classes, description, overwrite=overwrite)


def _scales(recipe: Recipe) -> bool:
    """Whether FedPerl's counts may shrink: where the recipe itself has removed images."""
    return recipe.scheme == "fedperl" and recipe.dataset == "lesions" and recipe.variant == "clean"


def _divide(records: Sequence[Record], recipe: Recipe) -> Sites:
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


def _divide_by_shares(records: Sequence[Record], recipe: Recipe) -> Sites:
    """The server's records, if it gets any, and those of sites that divide their images by the recipe's shares."""
    divided: Sites = {}
    if recipe.server_images:
        generator = numpy_generator(recipe.seed, "partition", SERVER)
        divided[SERVER], records = draw_server(records, recipe.server_images, generator)
    for site, own in _sites(records, recipe).items():
        generator = numpy_generator(recipe.seed, "partition", "splits", site)
        divided[site] = assign_splits(own, generator, site=site, **recipe.shares)
    return divided


def _sites(records: Sequence[Record], recipe: Recipe) -> Sites:
    generator = numpy_generator(recipe.seed, "partition", recipe.scheme)
    if recipe.scheme == "dirichlet":
        return dirichlet(records, recipe.sites, recipe.alpha, generator)
    if recipe.scheme == "iid":
        return iid(records, recipe.sites, generator)
    if not all(record.source for record in records):
        raise ConfigurationError("scheme sites needs the source of every image; fill in the column source or take iid")
    return by_source(records, recipe.sites, generator)
