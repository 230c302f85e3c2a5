"""Counts, sizes and intensities of a site's images; a figure that few stand behind is not given.

The least number holds for each figure by itself. No total is given: with all classes but one shown, it would tell the one
that is withheld.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

LEVELS = 256
SIZE_EDGES = (64, 128, 256, 512, 1024, 2048, 4096)
"""Lower ends of the classes of sizes, in pixels of the shorter side; the first class begins at nothing."""


def class_counts(labels: NDArray[np.int64], groups: Sequence[str], classes: int, least: int) -> dict[int, int]:
    """Images of each class.

    Args:
        labels: index of the class of each image, below zero where it is not known.
        groups: the patient of each image.
        classes: how many there are.
        least: fewest patients behind a count.

    Returns:
        The count by class; classes with fewer patients are missing.

    Example:
        >>> class_counts(np.array([0, 0, 0, 1, 1]), ["p", "q", "r", "s", "s"], 2, least=2)
        {0: 3}
    """
    found = {}
    for number in range(classes):
        rows = np.flatnonzero(labels == number).tolist()
        if len({groups[row] for row in rows}) >= max(1, least):
            found[number] = len(rows)
    return found


def intensity_shares(
    images: NDArray[np.uint8], rows: NDArray[np.int64], groups: Sequence[str], bins: int, least: int
) -> NDArray[np.float64]:
    """How intensities are distributed, by channel.

    Args:
        images: shape ``(N, H, W, C)``.
        rows: of the images that count.
        groups: the patient of each of all N images.
        bins: of equal width between 0 and 255; divides 256.
        least: fewest patients with a pixel in a bin.

    Returns:
        Share of the pixels in each bin that is shown, shape ``(C, bins)``; a channel's shares sum to one, NaN stands for a
        bin that is withheld.

    Raises:
        ValueError: if ``bins`` does not divide 256.
    """
    if bins < 1 or LEVELS % bins:
        raise ValueError(f"bins must divide {LEVELS}, got {bins}")
    channels = images.shape[-1]
    pixels = np.zeros((channels, bins), np.int64)
    patients: list[list[set[str]]] = [[set() for _ in range(bins)] for _ in range(channels)]
    for row in rows.tolist():
        for channel in range(channels):
            counts = np.bincount(images[row, ..., channel].ravel() // (LEVELS // bins), minlength=bins)
            pixels[channel] += counts
            for number in np.flatnonzero(counts):
                patients[channel][number].add(groups[row])
    support = np.array([[len(found) for found in channel] for channel in patients])
    shown = np.where(support >= max(1, least), pixels, 0)
    totals = shown.sum(axis=1, keepdims=True)
    return np.where(shown > 0, shown / np.maximum(totals, 1), np.nan)


def size_counts(shapes: Iterable[tuple[int, int, int, int]], least: int) -> dict[int, int]:
    """Images by the shorter side that they had before resizing.

    Args:
        shapes: height, width, channels and how many images have them.
        least: fewest images behind a count; whose they are is not kept with the sizes.

    Returns:
        The count by the lower end of the class of sizes (:data:`SIZE_EDGES`, or 0); small classes are missing.

    Example:
        >>> size_counts([(600, 450, 3, 40), (480, 500, 3, 9), (32, 32, 3, 1)], least=5)
        {256: 49}
    """
    counts: dict[int, int] = {}
    for height, width, _, number in shapes:
        edge = max((edge for edge in SIZE_EDGES if edge <= min(height, width)), default=0)
        counts[edge] = counts.get(edge, 0) + number
    return {edge: counts[edge] for edge in sorted(counts) if counts[edge] >= max(1, least)}
