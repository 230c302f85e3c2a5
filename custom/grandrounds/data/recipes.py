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
from grandrounds.data.partition import SERVER, Sites, by_source, deal, dirichlet, draw_server, iid, unseen
from grandrounds.data.partition_files import write_partition
from grandrounds.data.recipe import Recipe
from grandrounds.data.rsna_patients import Progress
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
    group_by: str | None = None,
    multi: str | None = None,
    slices: int | None = None,
    patients: Path | str | None = None,
    client_partition: str | None = None,
    windows: Sequence[Sequence[float]] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Divide a data set between simulated hospitals and write their manifests and site configurations.

    Every site has validation and test images of its own. Where sites have equal numbers of them, the mean over sites of
    what is itself a mean over images, such as accuracy, is the figure of all images together; that of a rank statistic
    or a score per class, such as AUC, is not.

    FedIRM's ten clients, of which two have labels, are ``iid`` with ``labelled_sites`` ``site-1`` and ``site-2`` under
    ``few_labels``, ``validation`` 0.1 and ``test`` 0.2. With fewer sites each gets more images; for fewer sites of the
    same size simulate the first ones of such a partition.

    Args:
        dataset: ``ham10000``; ``isic2018`` for task 3; ``lesions`` for the four data sets of FedPerl; ``isic2020``;
            ``rsna_ich``; or ``manifest`` for any other images with a manifest.
        root: where the images are: the data set's folder, for ``lesions`` the folder of the four folders (see
            :func:`~grandrounds.data.lesion_collection.read_lesions`), for ``manifest`` the images' folder or archive.
        scheme: ``sites`` divides by source, ``dirichlet`` by class with concentration ``alpha``, ``iid`` at random;
            ``fedperl`` makes the ten clients of that paper, splits included; ``unseen`` makes one site, ``unseen``, with
            all images for testing. None is ``unseen`` for ``isic2020``, ``iid`` for ``isic2018`` and ``rsna_ich``, and else
            ``sites``.
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
        group_by: of ``ham10000`` and ``isic2018``: ``lesion`` (default) keeps the images of one together; ``image`` divides
            image by image, as the FedIRM paper does, so that one lesion may be in training and test.
        multi: of ``rsna_ich``: slices with several subtypes are left out (``drop``, default) or count as of the ``first``.
        slices: of ``rsna_ich``: how many are drawn, patient by patient; None is 25,000.
        patients: of ``rsna_ich``: where the patients are written down, see
            :func:`~grandrounds.data.rsna_patients.find_patients`; None is ``patients.csv`` in ``root``.
        client_partition: of ``rsna_ich`` under ``iid``: whether a ``patient`` (default) is at one site, or each ``slice``
            goes to any, as in the FedIRM paper. No patient is in two splits, whatever the site.
        windows: of ``rsna_ich`` and of DICOM files with a ``manifest``: centre and width in Hounsfield units of each
            channel; None is brain, subdural and soft tissue for ``rsna_ich``, and else what the files say.
        progress: told how far a long reading is (headers read, headers in all).

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
            "group_by": group_by,
            "multi": multi,
            "slices": slices,
            "patients": patients,
            "client_partition": client_partition,
            "windows": windows,
        }
    )
    read = read_dataset(
        recipe.dataset,
        Path(root),
        recipe.options,
        recipe.seed,
        manifest=manifest,
        name=dataset_name,
        classes=classes,
        progress=progress,
    )
    description = {**recipe.description(), **read.facts}
    if _scales(recipe):
        description["scaled"] = scaled_sources(read.records)
    divided = relabel(_divide(read.records, recipe), recipe.scenario, recipe.labelled_sites, recipe.few_labels_use)
    return write_partition(
        divided,
        out,
        read.name,
        read.images,
        read.classes,
        description,
        overwrite=overwrite,
        windows=read.windows,
        shared_patients=recipe.client_partition == "slice",
    )


def _scales(recipe: Recipe) -> bool:
    """Whether FedPerl's counts may shrink: where the recipe itself has removed images."""
    return recipe.scheme == "fedperl" and recipe.dataset == "lesions" and recipe.options.variant == "clean"


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
    if recipe.client_partition == "slice":
        generator = numpy_generator(recipe.seed, "partition", "splits")
        split = assign_splits(records, generator, site="the data set", **recipe.shares)
        return divided | deal(split, recipe.sites, numpy_generator(recipe.seed, "partition", "slice"))
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
