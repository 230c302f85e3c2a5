"""How many images of each class to label next over all sites, and in which order at one place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.label_choice import Cuts, gaps_of


def label_order(probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
    """The order in which images of one place should be labelled: predicted classes in turn, of each the least certain first.

    Of equal margins the earlier image is first.

    Args:
        probabilities: shape ``(n, classes)``, of two classes or more.

    Returns:
        All rows, shape ``(n,)``.

    Example:
        >>> label_order(np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]]))
        array([1, 2, 3, 0])
    """
    predicted = probabilities.argmax(axis=1)
    by_margin = np.argsort(gaps_of(probabilities), kind="stable")
    turn = np.empty(len(predicted), np.int64)
    for name in np.unique(predicted):
        rows = by_margin[predicted[by_margin] == name]
        turn[rows] = np.arange(len(rows))
    return np.lexsort((np.arange(len(predicted)), predicted, turn)).astype(np.int64)


def quotas(available: NDArray[np.integer], labelled: NDArray[np.number], budget: int) -> NDArray[np.int64]:
    """How many images to label for each class, so that the classes with fewest labels grow to one level.

    Args:
        available: images that are meant for each class, over all sites.
        labelled: as of :func:`meant_for`.
        budget: images in all; where there are fewer, all are taken. Of equal classes the earlier one comes first.

    Example:
        >>> quotas(np.array([50, 3, 50]), np.array([8, 1, 5]), 12)
        array([3, 3, 6])
    """
    wanted = np.zeros(len(available), np.int64)
    for _ in range(min(budget, int(available.sum()))):
        wanted[np.where(wanted < available, labelled + wanted, np.inf).argmin()] += 1
    return wanted


def cuts_of(table: NDArray[np.integer], labelled: NDArray[np.number], budget: int) -> Cuts:
    """The cuts that yield a number of images in all.

    Args:
        table: images by bin and class, over all sites, shape ``(bins, classes)``.
        labelled: as of :func:`meant_for`.
        budget: of images.

    Example:
        >>> table = np.zeros((16, 2), np.int64)
        >>> table[[3, 9, 9], [0, 0, 1]] = 2, 4, 5
        >>> cuts_of(table, np.array([0, 2]), 6)  # four and two images
        Cuts(bins=array([9, 9]), shares=array([0.5, 0.4]))
    """
    return cuts_at(table, quotas(table.sum(axis=0), labelled, budget))


def cuts_at(table: NDArray[np.integer], wanted: NDArray[np.integer]) -> Cuts:
    """The cuts that yield these numbers of images, of each class at most as many as a table of :func:`cuts_of` has.

    Example:
        >>> cuts_at(np.array([[2, 0], [4, 5]]), np.array([4, 1]))
        Cuts(bins=array([1, 1]), shares=array([0.5, 0.2]))
    """
    upto = table.cumsum(axis=0)
    bins, classes = (upto < wanted).sum(axis=0), np.arange(table.shape[1])  # the first bin that reaches what is wanted
    inside = table[bins, classes]
    return Cuts(bins, (wanted - (upto[bins, classes] - inside)) / np.maximum(inside, 1))


def within(table: NDArray[np.integer], cuts: Cuts) -> NDArray[np.int64]:
    """How many images of each class of a table are within cuts, rounded.

    Example:
        >>> within(np.array([[2, 0], [4, 5]]), Cuts(np.array([1, 1]), np.array([0.5, 0.2])))
        array([4, 1])
    """
    classes, upto = np.arange(table.shape[1]), table.cumsum(axis=0)
    inside = table[cuts.bins, classes]
    return np.rint(upto[cuts.bins, classes] - inside * (1 - cuts.shares)).astype(np.int64)
