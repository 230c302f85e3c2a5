"""Which images of several sites to label next, from one number for each site and class: images and scores stay there.

A site predicts its unlabelled images with the common model and counts for which class each would be labelled. From the sums
of these counts follows a share for each class, so that the classes become as even as they can; each site draws that share of
its own images at random.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def evened(available: NDArray[np.integer], labelled: NDArray[np.integer], budget: int) -> NDArray[np.float64]:
    """How many images to take for each class, so that the classes with fewest labels grow to one level.

    Args:
        available: images that are meant for each class, over all sites.
        labelled: images that have a label already, of each class, over all sites.
        budget: images in all; where there are fewer, all are taken.

    Example:
        >>> evened(np.array([50, 3, 50]), np.array([8, 1, 5]), 12).round(6)
        array([2.5, 3. , 5.5])
    """
    low, high = 0.0, float((labelled + available).max())
    for _ in range(64):
        level = (low + high) / 2
        if np.clip(level - labelled, 0, available).sum() < budget:
            low = level
        else:
            high = level
    return np.clip(high - labelled, 0, available)


def drawn(
    meant: NDArray[np.integer], shares: NDArray[np.floating], generator: np.random.Generator
) -> NDArray[np.int64]:
    """The images of one site: of those that are meant for each class this share, at random.

    Args:
        meant: the class of each image, of :func:`~grandrounds.evaluation.label_choice.meant_for`.
        shares: for each class.
        generator: of the site.

    Returns:
        Rows of ``meant``.
    """
    rows = [generator.permutation(np.flatnonzero(meant == number)) for number in range(len(shares))]
    return np.concatenate([own[: round(share * len(own))] for own, share in zip(rows, shares.tolist(), strict=True)])
