"""Summary statistics of a site's data, released as scalars that the site's privacy gate knows by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.site import Part, SiteData
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.options import METHOD, Min, Options
from grandrounds.protocol.messages import Payload, Result

HISTOGRAM_BINS = 16
"""Bins of the intensity histogram."""
STATISTICS_PARTS: tuple[Part, ...] = ("labelled", "val", "test")


@dataclass(frozen=True)
class StatisticsOptions(Options):
    """What a site reports of its data; its own ``privacy.min_support`` applies if it is higher than ``min_count``."""

    min_count: Annotated[int, "minimum number of patients per value", Min(1), METHOD] = 10


class StatisticsExecutor(SiteExecutor):
    """Reports a site's images per class, their original sizes, and their intensities. It trains nothing.

    The metrics are ``images.PART.CLASS`` (images; the class by its index), ``images.unlabelled``, ``size.PIXELS`` (images of
    all parts, by the lower end of their shorter side) and ``intensity.CHANNEL.BIN`` (share of the training images' pixels).
    """

    needs_labels = False
    models: ClassVar[tuple[str, ...]] = ("own",)
    statistics: StatisticsOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"model": "own", **options})

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Compute the statistics; values with too few patients are missing, and no number of samples is reported."""
        min_count = max(self.statistics.min_count, context.data.min_support)
        counts = _counts(context.data, min_count)
        return Result(metrics={**counts, **_histograms(context.data, min_count)})


def _counts(data: SiteData, min_count: int) -> dict[str, float]:
    counted: dict[str, float] = {}
    for part in STATISTICS_PARTS:
        rows = data.rows(part)
        counts = class_counts(data.labels[rows], _groups(data, rows), len(data.classes), min_count)
        counted |= {f"images.{part}.{number}": float(count) for number, count in counts.items()}
    rows = data.rows("unlabelled")
    if len(set(_groups(data, rows))) >= min_count:
        counted["images.unlabelled"] = float(len(rows))
    return counted


def _histograms(data: SiteData, min_count: int) -> dict[str, float]:
    shares = intensity_shares(data.images, data.rows("train"), data.groups, HISTOGRAM_BINS, min_count)
    sizes = size_counts(data.cache.shapes, min_count)
    return {f"size.{edge}": float(count) for edge, count in sizes.items()} | {
        f"intensity.{channel}.{number}": float(share)
        for (channel, number), share in np.ndenumerate(shares)
        if not np.isnan(share)
    }


def _groups(data: SiteData, rows: np.ndarray) -> list[str]:
    return [data.groups[row] for row in rows]


GREY_LEVELS = 256
SIZE_EDGES = (64, 128, 256, 512, 1024, 2048, 4096)
"""Lower ends of the size classes after the first, in pixels of the shorter side."""


def class_counts(labels: NDArray[np.int64], groups: Sequence[str], classes: int, min_count: int) -> dict[int, int]:
    """Images of each class.

    Args:
        labels: class index of each image, below zero if unknown.
        groups: the patient of each image.
        classes: their number.
        min_count: minimum number of patients of a class.

    Returns:
        The count by class; none at all if one of them has images of fewer patients.

    Example:
        >>> class_counts(np.array([0, 0, 0]), ["p", "q", "r"], 2, min_count=2)
        {0: 3, 1: 0}
        >>> class_counts(np.array([0, 0, 0, 1, 1]), ["p", "q", "r", "s", "s"], 2, min_count=2)
        {}
    """
    counts = {}
    for number in range(classes):
        rows = np.flatnonzero(labels == number).tolist()
        if 0 < len({groups[row] for row in rows}) < min_count:
            return {}
        counts[number] = len(rows)
    return counts


def intensity_shares(
    images: NDArray[np.uint8], rows: NDArray[np.int64], groups: Sequence[str], bins: int, min_count: int
) -> NDArray[np.float64]:
    """Histogram of the intensities of each channel.

    Args:
        images: shape ``(N, H, W, C)``.
        rows: of the images to use.
        groups: the patient of each of the N images.
        bins: their number, of equal width between 0 and 255; divides 256.
        min_count: minimum number of patients with a pixel in a bin.

    Returns:
        Share of the pixels of the released bins, shape ``(C, bins)``; a channel's shares sum to one, withheld bins are NaN.
    """
    channels = images.shape[-1]
    pixels = np.zeros((channels, bins), np.int64)
    patients: list[list[set[str]]] = [[set() for _ in range(bins)] for _ in range(channels)]
    for row in rows.tolist():
        for channel in range(channels):
            counts = np.bincount(images[row, ..., channel].ravel() // (GREY_LEVELS // bins), minlength=bins)
            pixels[channel] += counts
            for number in np.flatnonzero(counts):
                patients[channel][number].add(groups[row])
    support = np.array([[len(seen) for seen in channel] for channel in patients])
    shown = np.where(support >= max(1, min_count), pixels, 0)
    totals = shown.sum(axis=1, keepdims=True)
    return np.where(shown > 0, shown / np.maximum(totals, 1), np.nan)


def size_counts(shapes: Iterable[tuple[int, int, int, int]], min_count: int) -> dict[int, int]:
    """Images by their shorter side before resizing.

    Args:
        shapes: height, width, channels and the number of images that have them.
        min_count: minimum number of images of a size class (their patients are not known here).

    Returns:
        The count by the lower end of the size class (:data:`SIZE_EDGES`, or 0), without smaller classes.

    Example:
        >>> size_counts([(600, 450, 3, 40), (480, 500, 3, 9), (32, 32, 3, 1)], min_count=5)
        {256: 49}
    """
    counts: dict[int, int] = {}
    for height, width, _, number in shapes:
        edge = max((edge for edge in SIZE_EDGES if edge <= min(height, width)), default=0)
        counts[edge] = counts.get(edge, 0) + number
    return {edge: counts[edge] for edge in sorted(counts) if counts[edge] >= max(1, min_count)}
