"""Sites for mutual learning: of equal size, with different classes, noisy labels, one test set and one public set.

MDH-FL (arXiv 2308.00155, section 4). The test set is a part of the data set with all classes in their proportions, drawn
first, with clean labels, and the same at every site. What is left is divided by clean labels; a site's labels go wrong
afterwards, those of its validation images as well: a hospital that does not know which labels are wrong selects by such
labels too. Every step has a random stream of its own, so that runs at several noise rates have the same images everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from grandrounds.data.blood_cells import read_matek19, read_mll23
from grandrounds.data.equal_dirichlet import equal_dirichlet
from grandrounds.data.label_noise import DrawnLabel, flip_records, noise_counts
from grandrounds.data.manifest import Record
from grandrounds.data.mutual_options import MutualOptions
from grandrounds.data.partition import Sites
from grandrounds.data.partition_files import AtEverySite
from grandrounds.data.pbc import read_bloodmnist, read_pbc
from grandrounds.data.public_set import PublicSet, list_public_set, open_public_set
from grandrounds.data.readers import open_images
from grandrounds.data.splits import stratified_draw
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.seeding import numpy_generator

CHANNELS = 3


class MutualSites(NamedTuple):
    """Who has which images.

    Attributes:
        sites: of every site, training and validation images, with noisy labels.
        test: of all sites, with clean labels.
        drawn: what was drawn for each site's images.
    """

    sites: Sites
    test: tuple[Record, ...]
    drawn: dict[str, tuple[DrawnLabel, ...]]


def draw_public_share(
    records: Sequence[Record], options: MutualOptions, seed: int
) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """Draw the public part of the data set that is divided, in the proportions of its classes.

    Returns:
        The public records and the others.
    """
    images = round(options.public_share * len(records))
    return stratified_draw(records, images, numpy_generator(seed, "partition", "mdhfl", "public"))


def mutual_sites(
    records: Sequence[Record],
    classes: Sequence[str],
    options: MutualOptions,
    sites: int,
    alpha: float,
    validation: float,
    test: float,
    seed: int,
) -> MutualSites:
    """Divide the private part of a data set.

    Args:
        records: each with a label and of a patient of its own.
        classes: the vocabulary, in its order, which noise of kind ``pair`` depends on.
        options: noise and number of images.
        sites: how many.
        alpha: concentration of the classes.
        validation: share of each site's images for validation.
        test: share of all images for the common test set.
        seed: of all random choices.

    Raises:
        DataError: if there are too few images, one has no label or two are of one patient.
    """

    def stream(*purpose: str) -> np.random.Generator:
        """Random numbers of one purpose, which no other choice disturbs."""
        return numpy_generator(seed, "partition", "mdhfl", *purpose)

    if options.private_images is not None:
        if options.private_images > len(records):
            raise DataError(f"there are {len(records)} private images, {options.private_images} are asked for")
        records, _ = stratified_draw(records, options.private_images, stream("private"))
    held_out, rest = stratified_draw(records, round(test * len(records)), stream("test"))
    if not held_out:
        raise DataError(f"{len(records)} images with a test share of {test} give no test image; raise the share")
    result: Sites = {}
    drawn: dict[str, tuple[DrawnLabel, ...]] = {}
    for site, own in equal_dirichlet(rest, sites, alpha, stream("sites")).items():
        chosen = set(stratified_draw(own, round(validation * len(own)), stream("validation", site))[0])
        split = [replace(record, split="val" if record in chosen else "train", labelled=True) for record in own]
        result[site], drawn[site] = flip_records(split, classes, options.label_noise, seed, site)
    return MutualSites(result, tuple(replace(record, split="test", labelled=True) for record in held_out), drawn)


def mutual_public_set(
    options: MutualOptions, share: Sequence[Record], images_root: Path, seed: int
) -> tuple[PublicSet, Path]:
    """The list of the public images, and where they are.

    Args:
        options: which images.
        share: the public part of the divided data set, for ``share``.
        images_root: where its images are.
        seed: of the draw of ``public_images``.

    Raises:
        ConfigurationError: if the place of the public images does not exist.
        DataError: if there are fewer images than asked for, or they cannot be read.
    """
    names, root = [record.image for record in share], images_root
    if options.public_root is not None:
        root = Path(options.public_root)
        if not root.exists():
            raise ConfigurationError(f"public_root {root} does not exist; name the folder of the public images")
        names, root = _named_public(options.public, root)
    if options.public_images is not None:
        if options.public_images > len(names):
            raise DataError(f"{root} has {len(names)} public images, {options.public_images} are asked for")
        generator = numpy_generator(seed, "partition", "mdhfl", "public images")
        names = generator.choice(sorted(names), options.public_images, replace=False).tolist()
    if options.public_size is None:
        return list_public_set(root, names), root
    with TemporaryDirectory() as folder:
        return open_public_set(root, options.public_size, CHANNELS, Path(folder), names)[0], root


def everywhere(
    options: MutualOptions, made: MutualSites, share: Sequence[Record], root: Path, seed: int
) -> AtEverySite:
    """What all sites get: the test images and the public set."""
    public, public_root = mutual_public_set(options, share, root, seed)
    return AtEverySite(made.test, public, public_root)


def noise_matrices(made: MutualSites, classes: Sequence[str]) -> dict[str, list[list[int]]]:
    """Of each site, how many images of each clean class (rows) got each label."""
    return {
        site: noise_counts([d.clean for d in drawn], [d.noisy for d in drawn], classes).tolist()
        for site, drawn in made.drawn.items()
    }


def _named_public(source: str, root: Path) -> tuple[list[str], Path]:
    if source == "folder":
        with open_images(root) as reader:
            return reader.names(), root
    if source in ("pbc", "bloodmnist"):
        records, place = (read_pbc if source == "pbc" else read_bloodmnist)(root)
        return [record.image for record in records], place
    records, _ = (read_matek19 if source == "matek19" else read_mll23)(root)
    return [record.image for record in records], root


def describe(options: MutualOptions, made: MutualSites, classes: Sequence[str]) -> dict[str, Any]:
    """What ``partition.json`` says of a partition for mutual learning beside the choices of every scheme."""
    content = options.description()
    if options.noise != "none":
        content["noise_matrices"] = noise_matrices(made, classes)
    return content
