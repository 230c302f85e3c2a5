"""Sites for mutual learning: of equal size, with different classes, noisy labels, one test set and one public set.

MDH-FL (arXiv 2308.00155, section 4). The test set is drawn first, with clean labels and all classes in their proportions,
and is the same at every site. The rest is divided by clean labels; labels become noisy afterwards, also those of validation
images: a hospital that does not know its wrong labels selects models by them. Every step has its own random stream, so that
partitions at several noise rates have the same images everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from grandrounds.data.datasets.registry import read_dataset
from grandrounds.data.families import dataset_options, partition_options
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record
from grandrounds.data.options import MutualOptions
from grandrounds.data.partition.divide import Sites, equal_dirichlet
from grandrounds.data.partition.label_noise import DrawnLabel, LabelNoise, flip_records, noise_counts
from grandrounds.data.partition.public_set import PublicSet, list_public_set, open_public_set
from grandrounds.data.partition.splits import stratified_draw
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.seeding import numpy_generator

CHANNELS = 3


class MutualSites(NamedTuple):
    """Who has which images.

    ``sites`` have training and validation images with noisy labels; the ``test`` images, with clean labels, are those of all
    sites; ``drawn`` is what was drawn for each site's images.
    """

    sites: Sites
    test: tuple[Record, ...]
    drawn: dict[str, tuple[DrawnLabel, ...]]


def draw_public_share(
    records: Sequence[Record], options: MutualOptions
) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """Draw the public part of the data set that is divided, in the proportions of its classes.

    Returns:
        The public records and the others.
    """
    images = round(options.public_fraction * len(records))
    return stratified_draw(records, images, numpy_generator(options.seed, "partition", "mdhfl", "public"))


def mutual_sites(records: Sequence[Record], classes: Sequence[str], options: MutualOptions) -> MutualSites:
    """Divide the private part of a data set; noise of kind ``pair`` depends on the order of the classes.

    Raises:
        DataError: if there are too few images, one has no label or two are of one patient.
    """

    def stream(*purpose: str) -> np.random.Generator:
        """Random numbers of one purpose, independent of all other options."""
        return numpy_generator(options.seed, "partition", "mdhfl", *purpose)

    if options.private_images is not None:
        if options.private_images > len(records):
            raise DataError(f"there are {len(records)} private images, {options.private_images} are asked for")
        records, _ = stratified_draw(records, options.private_images, stream("private"))
    shares = options.shares
    held_out, rest = stratified_draw(records, round(shares["test"] * len(records)), stream("test"))
    if not held_out:
        raise DataError(
            f"{len(records)} images with a test share of {shares['test']} give no test image; raise the share"
        )
    result: Sites = {}
    drawn: dict[str, tuple[DrawnLabel, ...]] = {}
    noise = LabelNoise(options.noise, options.noise_rate, options.noise_eligible)
    for site, own in equal_dirichlet(rest, options.site_count, options.alpha, stream("sites")).items():
        validation = round(shares["validation"] * len(own))
        chosen = set(stratified_draw(own, validation, stream("validation", site))[0])
        split = [replace(record, split="val" if record in chosen else "train", labelled=True) for record in own]
        result[site], drawn[site] = flip_records(split, classes, noise, options.seed, site)
    return MutualSites(result, tuple(replace(record, split="test", labelled=True) for record in held_out), drawn)


def mutual_public_set(options: MutualOptions, share: Sequence[Record], images_root: Path) -> tuple[PublicSet, Path]:
    """The list of the public images, and their folder or archive; ``share`` is the public part of the divided data set.

    Raises:
        ConfigurationError: if ``public_root`` does not exist.
        DataError: if there are fewer images than asked for, or they cannot be read.
    """
    names, root = [record.image for record in share], images_root
    if options.public_root is not None:
        root = options.public_root
        if not root.exists():
            raise ConfigurationError(f"public_root {root} does not exist; name the folder of the public images")
        names, root = _named_public(options.public, root)
    if options.public_images is not None:
        if options.public_images > len(names):
            raise DataError(f"{root} has {len(names)} public images, {options.public_images} are asked for")
        generator = numpy_generator(options.seed, "partition", "mdhfl", "public images")
        names = generator.choice(sorted(names), options.public_images, replace=False).tolist()
    if options.public_size is None:
        return list_public_set(root, names), root
    with TemporaryDirectory() as folder:
        return open_public_set(root, options.public_size, CHANNELS, Path(folder), names)[0], root


def _named_public(source: str, root: Path) -> tuple[list[str], Path]:
    if source == "folder":
        with open_images(root) as reader:
            return reader.names(), root
    read = read_dataset(source, root, partition_options(source, {}, dataset_options()))
    return [record.image for record in read.records], read.images


def describe_mutual(options: MutualOptions, made: MutualSites, classes: Sequence[str]) -> dict[str, Any]:
    """The entries of ``partition.json`` for mutual learning: options that have an effect, no path, and the noise."""
    content: dict[str, Any] = {"noise": options.noise, "public": options.public}
    if options.noise != "none":
        content |= {"noise_rate": options.noise_rate, "noise_eligible": options.noise_eligible}
    if options.public == "share":
        content["public_share"] = options.public_fraction
    for name in ("public_images", "private_images", "public_size"):
        if getattr(options, name) is not None:
            content[name] = getattr(options, name)
    if options.noise != "none":
        content["noise_matrices"] = {
            site: noise_counts([d.clean for d in drawn], [d.noisy for d in drawn], classes).tolist()
            for site, drawn in made.drawn.items()
        }
    return content
