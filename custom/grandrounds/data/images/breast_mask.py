"""Which pixels of a mammogram show the breast.

A digital detector leaves the background at one exact value; a scanned film has noise, labels and tape there. The two
need different thresholds: a film's threshold would cut the dark fat below the skin of a digital image. On a film of a dense
breast a threshold separates glands from fat, so the region then grows over the fat to the level of the film's base.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Levels = NDArray[np.float32]
Mask = NDArray[np.bool_]

COARSE_SIDE = 256
"""Longest side, in pixels, of the image in which the breast is searched."""

DIGITAL_BACKGROUND = 0.05
"""Least share of pixels at exactly the lowest value for the background to be a digital detector's."""

DIGITAL_GAP = 0.02
"""Within this share of the range above the background a digital image has nearly no pixels, a film's noise many."""

DIGITAL_NEAR = 0.05
"""Largest share of pixels in that gap, of those at the background's value, in a digital image."""

FULL_BOX = 0.9
"""A region that fills more of its bounding box than this is a sheet of film on the scanner's black, and no breast."""

FILM_GAMMA = 0.5
"""Exponent that spreads the dark values of a film, so that the threshold separates fat from background."""

BASE_DEVIATIONS = 1.5
"""Standard deviations of a pixel of the rim above the film's base."""

FAT_DEVIATIONS = 4.0
"""Least standard deviations of the median of a rim above the base; the halves of one normal distribution: 3."""

BASE_NOISE = 0.01
"""Largest standard deviation of a dark film's base, as a share of the range, of a bright one a tenth of its level: fat that
is taken for base varies more."""

RIM = 28
"""Largest width, in coarse pixels, of the dark rim of a breast."""

RIM_RADIUS = 6
"""Parts of the rim that do not hold a disc of this radius, in coarse pixels, are labels, scratches or fog."""

DETACHED = 2
"""Width in coarse pixels of bridges that are cut: labels and tape at the skin."""

OTSU_BINS = 256
MIN_SHARE = 0.01
"""Smallest share of the image that a breast takes."""


def otsu_threshold(values: NDArray[np.floating]) -> float:
    r"""The threshold with the largest variance between the values below and above it; equal values are at it.

    .. math:: t^* = \arg\max_t \; w_0(t)\,w_1(t)\,(\mu_1(t) - \mu_0(t))^2

    Source: N. Otsu, "A threshold selection method from gray-level histograms", IEEE Transactions on Systems, Man, and
    Cybernetics 9(1), 1979. Over a histogram of 256 bins; of equal maxima the middle one counts.

    Example:
        >>> otsu_threshold(np.array([0.0, 0.0, 0.0, 1.0, 1.0]))
        0.5
        >>> otsu_threshold(np.array([3.0, 3.0]))
        3.0
    """
    low, high = float(values.min()), float(values.max())
    if high <= low:
        return low
    counts, edges = np.histogram(values, OTSU_BINS, (low, high))
    centres = (edges[:-1] + edges[1:]) / 2
    below = counts.cumsum()[:-1].astype(np.float64)
    above = counts.sum() - below
    sums = (counts * centres).cumsum()
    spread = sums[:-1] / np.maximum(below, 1) - (sums[-1] - sums[:-1]) / np.maximum(above, 1)
    between = below * above * spread**2
    best = np.flatnonzero(between >= between.max() * (1 - 1e-12))
    return float(edges[1:-1][best[[0, -1]]].mean())


def breast_mask(levels: Levels) -> Mask:
    """Which pixels belong to the breast: the largest bright region, without labels, holes filled.

    Returns:
        Shape ``(H, W)``; nowhere true if the image has one level only or no region takes a hundredth of it. The region
        was found at no more than 256 pixels a side and widened by one of those pixels, so that the skin is inside.

    Example:
        >>> image = np.zeros((8, 8), np.float32)
        >>> image[2:6, :5] = 1.0
        >>> breast_mask(image).sum(axis=1).tolist()
        [0, 5, 6, 6, 6, 6, 5, 0]
    """
    step = max(1, math.ceil(max(levels.shape) / COARSE_SIDE))
    region = _breast_region(levels, _block_means(levels, step))
    if region.mean() < MIN_SHARE:
        return np.zeros(levels.shape, np.bool_)
    from scipy import ndimage  # for these images alone: sites without mammograms do not wait for it

    widened = ndimage.binary_dilation(region)
    height, width = levels.shape
    return np.asarray(widened.repeat(step, axis=0).repeat(step, axis=1)[:height, :width], np.bool_)


def bounding_box(mask: Mask) -> tuple[slice, slice]:
    """Rows and columns from the first to the last that hold something, of a mask that is not empty.

    Example:
        >>> bounding_box(np.array([[False, False], [False, True]]))
        (slice(1, 2, None), slice(1, 2, None))
    """
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def _block_means(levels: Levels, step: int) -> Levels:
    height, width = levels.shape
    padded = np.pad(levels, ((0, -height % step), (0, -width % step)), mode="edge")
    blocks = padded.reshape(padded.shape[0] // step, step, padded.shape[1] // step, step)
    return np.asarray(blocks.mean(axis=(1, 3)), np.float32)


def _breast_region(levels: Levels, coarse: Levels) -> Mask:
    low, high = float(levels.min()), float(levels.max())
    region = np.zeros(coarse.shape, np.bool_)
    if high <= low:
        return region
    gap = low + DIGITAL_GAP * (high - low)
    if _is_digital(levels, low, gap):
        region = _largest_region(coarse > gap)
    if not region.any() or float(region[bounding_box(region)].mean()) > FULL_BOX:
        threshold = _film_threshold(coarse, low, high)
        on_film = _largest_region(coarse > threshold)
        region = _grown(on_film, coarse, low, threshold) if on_film.any() else region
    return region


def _is_digital(levels: Levels, low: float, gap: float) -> bool:
    background = float((levels == low).mean())
    near = float(((levels > low) & (levels < gap)).mean())
    return background >= DIGITAL_BACKGROUND and near <= DIGITAL_NEAR * background


def _film_threshold(coarse: Levels, low: float, high: float) -> float:
    """The level that separates bright from dark on a film; where glands are dense, the fat at the skin is dark."""
    # Scans are padded with the lowest value, which would make two classes of padding and film.
    spread = ((coarse - low) / (high - low)) ** FILM_GAMMA
    return float(low + (high - low) * otsu_threshold(spread[coarse > low]) ** (1 / FILM_GAMMA))


def _grown(region: Mask, coarse: Levels, low: float, threshold: float) -> Mask:
    """Grow a region over the dark rim around it that is brighter than the film's base."""
    from scipy import ndimage

    dark = coarse[(coarse > low) & (coarse <= threshold)]
    if not len(dark):
        return region
    split = low + otsu_threshold((dark - low) ** FILM_GAMMA) ** (1 / FILM_GAMMA)
    base, fat = dark[dark <= split], dark[dark > split]
    middle = float(np.median(base))
    deviation = 1.4826 * float(np.median(np.abs(base - middle)))  # of a normal distribution with that median deviation
    deviation = min(deviation, max(BASE_NOISE * (float(coarse.max()) - low), 0.1 * (middle - low)))
    if not len(fat) or float(np.median(fat)) < middle + FAT_DEVIATIONS * deviation:
        return region
    rim = (coarse > min(middle + BASE_DEVIATIONS * deviation, threshold)) & (_distance(~region) <= RIM)
    labels, _ = ndimage.label(region | _opened_by_disc(region | rim))
    return np.asarray(ndimage.binary_fill_holes(np.isin(labels, np.unique(labels[region]))), np.bool_)


def _distance(mask: Mask) -> NDArray[np.float64]:
    """The distance of each pixel of a mask to the nearest one outside."""
    from scipy import ndimage

    return np.asarray(ndimage.distance_transform_edt(mask), np.float64)


def _opened_by_disc(mask: Mask) -> Mask:
    # A breast goes on beyond the edge of the image, so the edge cuts nothing off.
    margin = RIM_RADIUS + 1
    inner = _distance(np.pad(mask, margin, mode="edge")) > RIM_RADIUS
    opened = _distance(~inner) <= RIM_RADIUS
    return np.asarray(opened[margin:-margin, margin:-margin], np.bool_)


def _opened(bright: Mask) -> Mask:
    # Opening cuts thin bridges; tiny images would lose everything to it.
    from scipy import ndimage

    opened = ndimage.binary_opening(bright, iterations=DETACHED)
    return np.asarray(opened if opened.any() else bright, np.bool_)


def _largest_region(bright: Mask) -> Mask:
    from scipy import ndimage

    labels, count = ndimage.label(_opened(bright))
    if count == 0:
        return np.zeros(bright.shape, np.bool_)
    sizes = np.bincount(labels.ravel())[1:]
    return np.asarray(ndimage.binary_fill_holes(labels == int(sizes.argmax()) + 1), np.bool_)
