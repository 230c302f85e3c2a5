"""Sites for mutual learning: of equal size, with different classes, noisy labels, one test set and one public set.

Label noise: MDH-FL (arXiv 2308.00155, section 4) and RHFL (Fang & Ye, CVPR 2022) test with two kinds of errors:
``symmetric``, to any other class alike, and ``pair``, to the next class of the vocabulary. Which class is next depends
on the order of the vocabulary, so the order is part of the experiment. What was drawn stays beside the site's manifest
as a table.

Division (MDH-FL, section 4): the test set is drawn first, with clean labels and all classes in their proportions,
and is the same at every site. The rest is divided by clean labels; labels become noisy afterwards, also those of validation
images: a hospital that does not know its wrong labels selects models by them. Every step has its own random stream, so that
partitions at several noise rates have the same images everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_fraction
from grandrounds.data.datasets.blood import read_bloodmnist, read_matek19, read_mll23, read_pbc
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record, require_known_label
from grandrounds.data.options import MutualOptions, NoiseKind
from grandrounds.data.partition.divide import Sites, equal_dirichlet
from grandrounds.data.partition.files import Replicated
from grandrounds.data.partition.public_set import PublicSet, list_public_set, open_public_set
from grandrounds.data.partition.splits import stratified_draw
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.files import write_csv
from grandrounds.seeding import numpy_generator


@dataclass(frozen=True)
class LabelNoise:
    r"""How labels go wrong.

    Attributes:
        kind: ``none``, ``symmetric`` or ``pair``.
        rate: :math:`\mu`, probability in [0, 1] that the label of an eligible image is another.
        eligible: fraction in [0, 1] of the images whose label can be wrong at all.

    Raises:
        ValueError: if the kind is unknown, a number out of range, or there is a rate without a kind.
    """

    kind: NoiseKind = "none"
    rate: float = 0.0
    eligible: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(NoiseKind):
            raise ValueError(f"kind of label noise must be one of {', '.join(get_args(NoiseKind))}, got {self.kind!r}")
        require_fraction(self.rate, "rate of label noise")
        require_fraction(self.eligible, "eligible fraction of label noise")
        if self.kind == "none" and self.rate > 0:
            raise ValueError(f"label noise of kind none has no rate, got {self.rate}; choose symmetric or pair")


@dataclass(frozen=True)
class DrawnLabel:
    """The label that was drawn for an image: its class, and what the site takes it for."""

    image: str
    clean: str
    noisy: str


def flip_labels(
    labels: NDArray[np.integer], classes: int, noise: LabelNoise, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Draw noisy labels for clean class indices, shape ``(images,)``.

    Each eligible label is changed with probability ``noise.rate``. With the same generator a label that is wrong at one rate
    is wrong in the same way at every higher one, so runs at several rates differ only in the added errors.

    Raises:
        ValueError: if a label is no class, or there are fewer than two classes.

    Example:
        >>> flip_labels(np.array([0, 1, 2]), 3, LabelNoise("pair", 1.0), np.random.Generator(np.random.Philox(1)))
        array([1, 2, 0])
    """
    if classes < 2:
        raise ValueError(f"label noise needs at least 2 classes, got {classes}")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"labels must be between 0 and {classes - 1}, got {int(labels.min())} to {int(labels.max())}")
    # All numbers are drawn whatever the noise is, so that different noise meets the same images.
    chance = generator.random(len(labels))
    steps = generator.integers(1, classes, len(labels))
    place = generator.permutation(len(labels))
    wrong = (chance < noise.rate) & (place < round(noise.eligible * len(labels)))
    if noise.kind == "pair":
        steps = np.ones_like(steps)
    flipped: NDArray[np.int64] = np.where(wrong, (labels + steps) % classes, labels).astype(np.int64)
    return flipped


def flip_records(
    records: Sequence[Record], classes: Sequence[str], noise: LabelNoise, seed: int, site: str
) -> tuple[tuple[Record, ...], tuple[DrawnLabel, ...]]:
    """Give a site's training and validation images noisy labels; test labels stay clean.

    Divide the data set between sites first, by clean labels. The result is written to disk, so that no run draws again. Each
    site has its own errors.

    Returns:
        The records with noisy labels in their order, and the draw of each labelled image that is not for testing.

    Raises:
        DataError: if a label is not in the vocabulary.
    """
    for record in records:
        if record.label:
            require_known_label(record.label, classes, f"{site}: label of image {record.image!r}")
    index = {name: number for number, name in enumerate(classes)}
    places = [place for place, record in enumerate(records) if record.label and record.split != "test"]
    labels = np.array([index[records[place].label] for place in places], dtype=np.int64)
    noisy = flip_labels(labels, len(classes), noise, numpy_generator(seed, "label noise", site))
    result = list(records)
    for place, label in zip(places, noisy, strict=True):
        result[place] = replace(records[place], label=classes[label])
    return tuple(result), tuple(DrawnLabel(records[p].image, records[p].label, result[p].label) for p in places)


def noise_counts(clean: Sequence[str], noisy: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64]:
    """How many images of each clean class got each label.

    Returns:
        Shape ``(classes, classes)``; rows are clean classes. Divided by the sums of its rows it is the transition matrix
        that was realised.

    Example:
        >>> noise_counts(["a", "a", "b"], ["a", "b", "b"], ["a", "b"])
        array([[1, 1],
               [0, 1]])
    """
    index = {name: number for number, name in enumerate(classes)}
    counts = np.zeros((len(classes), len(classes)), dtype=np.int64)
    for before, after in zip(clean, noisy, strict=True):
        counts[index[before], index[after]] += 1
    return counts


def write_drawn_labels(labels: Sequence[DrawnLabel], path: Path) -> str:
    """Write the drawn labels as CSV with the columns ``image,clean,noisy``, atomically.

    Returns:
        The SHA-256 of the file's bytes, in hexadecimal.
    """
    return write_csv(path, ("image", "clean", "noisy"), [(drawn.image, drawn.clean, drawn.noisy) for drawn in labels])


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
    records: Sequence[Record], options: MutualOptions
) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """Draw the public part of the data set that is divided, in the proportions of its classes.

    Returns:
        The public records and the others.
    """
    images = round(options.public_fraction * len(records))
    return stratified_draw(records, images, numpy_generator(options.seed, "partition", "mdhfl", "public"))


def mutual_sites(records: Sequence[Record], classes: Sequence[str], options: MutualOptions) -> MutualSites:
    """Divide the private part of a data set.

    Args:
        records: each with a label and of a patient of its own.
        classes: the vocabulary, in its order, which noise of kind ``pair`` depends on.
        options: of the partition.

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


def replicate_to_all(options: MutualOptions, made: MutualSites, share: Sequence[Record], root: Path) -> Replicated:
    """The test images and the public set, which all sites get."""
    public, public_root = mutual_public_set(options, share, root)
    return Replicated(made.test, public, public_root)


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
        content["noise_matrices"] = noise_matrices(made, classes)
    return content
