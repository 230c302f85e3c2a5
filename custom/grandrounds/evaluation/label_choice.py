"""Which images to label next, at one place or at several whose images and scores stay where they are.

Each image is meant for a class, and certain by its margin, the most probable class's probability minus the next one's
(Scheffer, Decomain and Wrobel, "Active hidden Markov models for information extraction", IDA 2001). Sites count their images
by class and margin; from the sum follows for each class how far its least certain images are to be labelled, so that the
classes become as even as they can (``benchmarks/label_choice`` compares this rule with others).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.counts import MARGIN_BINS

NO_BIN = MARGIN_BINS
"""Of images that are not counted; beyond every cut."""


class Ranked(NamedTuple):
    """The unlabelled images of a site, int64 and float64 of shape ``(n,)``.

    Attributes:
        meant: the class of each.
        bins: in which it is counted; ``NO_BIN`` where it is not.
        margins: by which images of a bin are ordered, the smallest first.
    """

    meant: NDArray[np.int64]
    bins: NDArray[np.int64]
    margins: NDArray[np.float64]

    def table(self, classes: int) -> NDArray[np.int64]:
        """The counts that are added to those of other sites, shape ``(MARGIN_BINS, classes)``."""
        counts = np.zeros((MARGIN_BINS + 1, classes), np.int64)
        np.add.at(counts, (self.bins, self.meant), 1)
        return counts[:NO_BIN]


class Cuts(NamedTuple):
    """How far each class is to be labelled, shape ``(classes,)``: whole ``bins`` below, and this share of the bin itself."""

    bins: NDArray[np.int64]
    shares: NDArray[np.float64]


def gaps_of(probabilities: NDArray[np.floating]) -> NDArray[np.float64]:
    """The gap between the two largest probabilities of each image, of shape ``(n, classes)`` with two classes or more."""
    highest = np.sort(probabilities.astype(np.float64), axis=1)
    return np.asarray(highest[:, -1] - highest[:, -2])


def meant_for(probabilities: NDArray[np.floating], labelled: NDArray[np.number]) -> NDArray[np.int64]:
    """The class that each image would be labelled for: of the largest product of probability and lack of labels.

    Args:
        probabilities: shape ``(images, classes)``.
        labelled: images that have a label already, of each class, over all sites.

    Example:
        >>> meant_for(np.array([[0.7, 0.3], [0.9, 0.1]]), np.array([9, 3]))  # the lack is 1 and 2.5
        array([1, 0])
    """
    return (probabilities * (labelled.max() + 1) / (labelled + 1)).argmax(axis=1)


def ranked(
    meant: NDArray[np.int64], margins: NDArray[np.float64], patients: Sequence[str], minimum: int, classes: int
) -> tuple[Ranked, NDArray[np.int64]]:
    """A site's images in bins of enough patients each.

    A class of fewer patients is not counted. Neighbouring bins are put together, from the smallest margin on, until they
    are of enough patients, and what remains belongs to the last of these; all are counted in the bin of their median image.

    Args:
        meant: the class of each image, see :func:`meant_for`.
        margins: likewise, see :func:`gaps_of`.
        patients: likewise.
        minimum: of different patients behind a count that is not 0.
        classes: their number.

    Returns:
        The images, and how many patients each class has that is counted, shape ``(classes,)``.

    Example:
        >>> found, support = ranked(np.array([0, 0, 0, 1]), np.array([0.5, 0.25, 0.75, 0.1]), list("abcd"), 2, 2)
        >>> found.bins, support  # all three are together, because the third would be alone
        (array([ 8192,  8192,  8192, 16384]), array([3, 0]))
    """
    natural = np.minimum(margins * MARGIN_BINS, MARGIN_BINS - 1).astype(np.int64)
    bins, support = np.full(len(meant), NO_BIN, np.int64), np.zeros(classes, np.int64)
    for number in range(classes):
        rows = np.flatnonzero(meant == number)
        rows = rows[np.argsort(margins[rows], kind="stable")]
        people = {patients[row] for row in rows.tolist()}
        if len(people) < max(minimum, 1):
            continue
        support[number], groups = len(people), list[list[int]]()
        for row in rows.tolist():
            if not groups or (len(people) >= minimum and natural[row] != natural[groups[-1][-1]]):
                groups.append([])
                people = set()
            groups[-1].append(row)
            people.add(patients[row])
        if len(people) < minimum:
            groups[-2:] = [groups[-2] + groups[-1]]
        for group in groups:
            bins[group] = natural[group[(len(group) - 1) // 2]]
    return Ranked(meant, bins, margins), support


def chosen(images: Ranked, cuts: Cuts) -> NDArray[np.int64]:
    """A site's images to label, the smallest margin first.

    Of the bin of a cut it takes that share of its own images, rounded, with the smallest margins first. The sites together
    take what was asked for, but for these roundings where several have images in the bin.

    Example:
        >>> images = Ranked(np.array([0, 0, 0, 1]), np.array([3, 9, 9, 9]), np.array([0.1, 0.3, 0.2, 0.2]))
        >>> chosen(images, Cuts(np.array([9, 9]), np.array([0.5, 0.4])))
        array([0, 2])
    """
    by_margin, taken = np.argsort(images.margins, kind="stable"), [np.zeros(0, np.int64)]
    for number, (cut, share) in enumerate(zip(*cuts, strict=True)):
        own = by_margin[(images.meant[by_margin] == number) & (images.bins[by_margin] < NO_BIN)]
        edge = own[images.bins[own] == cut]
        taken += [own[images.bins[own] < cut], edge[: int(share * len(edge) + 0.5)]]
    rows = np.concatenate(taken)
    return rows[np.argsort(images.margins[rows], kind="stable")]
