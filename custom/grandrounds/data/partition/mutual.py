"""What can be chosen of a partition for mutual learning: label noise, and images that all sites have.

Sites for mutual learning: of equal size, with different classes, noisy labels, one test set and one public set.

MDH-FL (arXiv 2308.00155, section 4). The test set is a part of the data set with all classes in their proportions, drawn
first, with clean labels, and the same at every site. What is left is divided by clean labels; a site's labels go wrong
afterwards, those of its validation images as well: a hospital that does not know which labels are wrong selects by such
labels too. Every step has a random stream of its own, so that runs at several noise rates have the same images everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from grandrounds.data.datasets.blood import read_bloodmnist, read_matek19, read_mll23, read_pbc
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record
from grandrounds.data.partition.dirichlet import equal_dirichlet
from grandrounds.data.partition.divide import Sites
from grandrounds.data.partition.files import AtEverySite
from grandrounds.data.partition.label_noise import DrawnLabel, LabelNoise, NoiseKind, flip_records, noise_counts
from grandrounds.data.partition.public_set import PublicSet, list_public_set, open_public_set
from grandrounds.data.partition.splits import stratified_draw
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.options import require_min, require_words
from grandrounds.seeding import numpy_generator

PublicSource = Literal["share", "folder", "matek19", "mll23", "pbc", "bloodmnist"]

PUBLIC_SHARE = 0.5
DEFAULTS: Mapping[str, Any] = {
    "noise": "none",
    "noise_rate": 0.0,
    "noise_eligible": 1.0,
    "public": "share",
    "public_share": PUBLIC_SHARE,
    "public_root": None,
    "public_images": None,
    "private_images": None,
    "public_size": None,
}


@dataclass(frozen=True)
class MutualOptions:
    """The choices of the scheme ``mdhfl``; the fields are the arguments of ``make_partition`` of the same names.

    Attributes:
        noise: kind of the label noise, drawn for training and validation images.
        noise_rate: probability that the label of an eligible image is another.
        noise_eligible: fraction of the images whose label can be wrong at all.
        public: where the public set comes from: a ``share`` of the divided data set itself, without labels; a ``folder`` (or
            archive) of any images; or a data set by name, of which the images with a class are taken.
        public_share: which share, for ``share``.
        public_root: the place of the public images, for all but ``share``.
        public_images: how many are drawn of them; None is all.
        private_images: how many images are divided between test set and sites, drawn by class; None is all.
        public_size: height and width in pixels at which the hashes of the decoded public images are written down; None
            leaves the comparison of decoders to the sites.
    """

    noise: NoiseKind
    noise_rate: float
    noise_eligible: float
    public: PublicSource
    public_share: float
    public_root: Path | None
    public_images: int | None
    private_images: int | None
    public_size: int | None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Complete and check choices; None stands for a default.

        Raises:
            ConfigurationError: if a word is unknown, a number out of range, or two choices do not fit together.
        """
        given = {name: arguments[name] for name in DEFAULTS if arguments[name] is not None}
        options = cls(**{**DEFAULTS, **given})
        options._check_public(given)
        require_min(options, 1, "public_images", "private_images", "public_size")
        try:
            LabelNoise(options.noise, options.noise_rate, options.noise_eligible)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        return options

    @property
    def label_noise(self) -> LabelNoise:
        """How labels go wrong."""
        return LabelNoise(self.noise, self.noise_rate, self.noise_eligible)

    def description(self) -> dict[str, Any]:
        """What ``partition.json`` says of the choices: those that have an effect on this partition, and no path."""
        content: dict[str, Any] = {"noise": self.noise, "public": self.public}
        if self.noise != "none":
            content |= {"noise_rate": self.noise_rate, "noise_eligible": self.noise_eligible}
        if self.public == "share":
            content["public_share"] = self.public_share
        for name in ("public_images", "private_images", "public_size"):
            if getattr(self, name) is not None:
                content[name] = getattr(self, name)
        return content

    def _check_public(self, given: Mapping[str, Any]) -> None:
        require_words(self, "public")
        if self.public == "share" and self.public_root is not None:
            raise ConfigurationError("public_root is for public images of another place; set public, or leave it out")
        if self.public != "share" and self.public_root is None:
            raise ConfigurationError(f"public {self.public} needs public_root, where its images are")
        if self.public != "share" and "public_share" in given:
            raise ConfigurationError(f"public_share is for public share; leave it out for {self.public}")
        if not 0 < self.public_share < 1:
            raise ConfigurationError(f"public_share must be above 0 and below 1, got {self.public_share}")


def require_mutual(scheme: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a choice that would have no effect on another scheme, so that nobody believes it had.

    Raises:
        ConfigurationError: naming the choice.
    """
    for name in DEFAULTS:
        if arguments[name] is not None and scheme != "mdhfl":
            raise ConfigurationError(f"{name} is for the scheme mdhfl; leave it out for {scheme}")


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
