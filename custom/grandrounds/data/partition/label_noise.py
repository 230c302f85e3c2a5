"""Labels that are wrong at random, drawn once and written down.

MDH-FL (arXiv 2308.00155, section 4) and RHFL (Fang & Ye, CVPR 2022) test with two kinds of errors: ``symmetric``, to any
other class alike, and ``pair``, to the next class of the vocabulary. Which class is next depends on the order of the
vocabulary, so the order is part of the experiment. What was drawn stays beside the site's manifest as a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_known_label
from grandrounds.csv_files import write_csv
from grandrounds.data.manifest import Record
from grandrounds.data.options import NoiseKind
from grandrounds.seeding import numpy_generator


@dataclass(frozen=True)
class LabelNoise:
    r"""How labels go wrong, as :class:`~grandrounds.data.options.MutualOptions` has checked it.

    Attributes:
        kind: ``none``, ``symmetric`` or ``pair``.
        rate: :math:`\mu`, probability in [0, 1] that the label of an eligible image is another.
        eligible: fraction in [0, 1] of the images whose label can be wrong at all.
    """

    kind: NoiseKind = "none"
    rate: float = 0.0
    eligible: float = 1.0


@dataclass(frozen=True)
class DrawnLabel:
    """The label that was drawn for an image: its class, and what the site takes it for."""

    image: str
    clean: str
    noisy: str


def flip_labels(
    labels: NDArray[np.integer], classes: int, noise: LabelNoise, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Draw noisy labels for clean indices of two or more classes, shape ``(images,)``.

    Each eligible label is changed with probability ``noise.rate``. With the same generator a label that is wrong at one rate
    is wrong in the same way at every higher one, so runs at several rates differ only in the added errors.

    Example:
        >>> flip_labels(np.array([0, 1, 2]), 3, LabelNoise("pair", 1.0), np.random.Generator(np.random.Philox(1)))
        array([1, 2, 0])
    """
    # All numbers are drawn whatever the noise is, so that different noise meets the same images.
    chance = generator.random(len(labels))
    steps = generator.integers(1, classes, len(labels))
    place = generator.permutation(len(labels))
    wrong = (chance < noise.rate) & (place < round(noise.eligible * len(labels)))
    if noise.kind == "pair":
        steps = np.ones_like(steps)
    return np.where(wrong, (labels + steps) % classes, labels).astype(np.int64)


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
