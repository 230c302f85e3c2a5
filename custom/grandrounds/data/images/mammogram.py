"""Mammograms of all devices in one form: all bits of the file, breast alone, chest wall left, square.

Source: A. Jimenez-Sanchez et al., "Memory-aware curriculum federated learning for breast cancer classification",
Computer Methods and Programs in Biomedicine 229, 2023, which crops the background, resizes to a height of 2048 pixels
with the aspect kept and pads to a square; mirroring follows N. Wu et al., "Deep neural networks improve radiologists'
performance in breast cancer screening", IEEE TMI 39(4), 2020.

A digital detector leaves the background at one exact value; a scanned film has noise, labels and tape there. The two
need different thresholds: a film's threshold would cut the dark fat below the skin of a digital image. On a film of a dense
breast a threshold separates glands from fat, so the region then grows over the fat to the level of the film's base.
"""

from __future__ import annotations

import math
import re
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.dicom import read_grey
from grandrounds.data.images.files.opening import is_dicom, open_raster
from grandrounds.errors import DataError

CLEAR_SHAPE = 1.3
"""Ratio of the outer thirds of a breast's mask above which the shape is clear enough to overrule the laterality."""

MINI_MIAS_NAME = re.compile(r"mdb(\d{3})")
"""Films of mini-MIAS: odd numbers are right breasts."""
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


def chest_wall_on_right(mask: Mask, clear: float = 1.0) -> bool | None:
    """Whether the chest wall is on the right, from the shape alone: a breast is tallest there and ends in the nipple.

    None unless one outer third of the mask, cropped to its bounding box, holds more than ``clear`` times as many pixels as
    the other.

    Example:
        >>> chest_wall_on_right(np.triu(np.ones((6, 6), np.bool_)))
        True
        >>> chest_wall_on_right(np.ones((6, 6), np.bool_)) is None
        True
    """
    third = max(1, mask.shape[1] // 3)
    left, right = int(mask[:, :third].sum()), int(mask[:, -third:].sum())
    return right > left if max(left, right) > clear * min(left, right) else None


def read_mammogram(data: bytes, name: str) -> tuple[Levels, Laterality]:
    """Decode a DICOM, PNG, PGM, TIFF or JPEG file, recognised by its bytes.

    DICOM files are rendered by their own look-up table or window, and what stores white as low is inverted. EXIF
    orientation is applied. Colours become luma (ITU-R 601).

    Returns:
        Grey levels, bright tissue, shape ``(H, W)``, in [0, 1] for DICOM files and in the file's own unit for others; and
        the laterality, which a DICOM file contains and mini-MIAS shows by the number in a film's name.

    Raises:
        DataError: naming the image and the cause, if it cannot be decoded.
    """
    if is_dicom(data, name):
        levels, laterality = read_grey(data, name)
        return levels.astype(np.float32), "L" if laterality == "L" else "R" if laterality else ""
    with open_raster(data, name) as raster:
        return raster.levels(), _named_laterality(name)


def _named_laterality(name: str) -> Laterality:
    film = MINI_MIAS_NAME.fullmatch(PurePosixPath(name).stem)
    return "" if film is None else "R" if int(film[1]) % 2 else "L"


Laterality = Literal["L", "R", ""]
"""Left, right or unknown breast."""


def mammogram_square(levels: Levels, size: int, name: str, laterality: Laterality = "") -> NDArray[np.uint8]:
    """Crop, orient, resize and pad a mammogram of shape ``(H, W)`` with bright tissue; only then it becomes 8 bits.

    The grey levels of the breast are spread over 0 to 255, and all else is 0. A per-image standardisation
    (:func:`~grandrounds.models.intensities.standardise`) undoes any such spreading, so 8 bits cost rounding only: on
    films with 12 bits 0.0036 of a standard deviation (root mean square; 16 bits 0.00001, half-precision floats 0.0003),
    where the network of Jimenez-Sanchez et al. itself adds noise of 0.01. A bright clip or implant in the breast costs as
    many times more as it is brighter than the tissue.

    Returns:
        Shape ``(size, size)``, values 0 to 255.

    Raises:
        DataError: if there is no breast to be seen.
    """
    mask = breast_mask(levels)
    if not mask.any():
        raise DataError(f"{name} shows no breast: no bright region takes a hundredth of it; look at it and take it out")
    box = bounding_box(mask)
    oriented, inside = to_chest_wall_left(levels[box], mask[box], laterality)
    return to_bytes(fit_square(without_background(oriented, inside), size))


def without_background(levels: Levels, mask: Mask) -> Levels:
    """Scale grey levels, shape ``(H, W)``, from their minimum, as 0, to the breast's maximum, as 1; 0 outside the breast.

    Example:
        >>> without_background(np.float32([[2, 4, 9]]), np.array([[True, True, False]])).tolist()
        [[0.0, 1.0, 0.0]]
    """
    low, high = float(levels.min()), float(levels[mask].max(initial=levels.min()))
    if high <= low:
        return np.zeros_like(levels)
    return np.where(mask, (levels - low) / (high - low), 0).astype(np.float32)


def to_chest_wall_left(levels: Levels, mask: Mask, laterality: Laterality = "") -> tuple[Levels, Mask]:
    """Mirror image and mask, cropped to the breast, if the chest wall is on the right.

    A known laterality decides unless the shape is clear, see :data:`CLEAR_SHAPE`: some data sets are mirrored on export and
    keep the tag. A right breast has its chest wall on the right. Without a laterality the shape decides.

    Example:
        >>> image, mask = np.float32([[0, 1], [2, 3]]), np.array([[False, True], [True, True]])
        >>> to_chest_wall_left(image, mask)[0].tolist()
        [[1.0, 0.0], [3.0, 2.0]]
    """
    seen = chest_wall_on_right(mask, CLEAR_SHAPE if laterality else 1.0)
    if laterality == "R" if seen is None else seen:
        return levels[:, ::-1], mask[:, ::-1]
    return levels, mask


def fit_square(levels: Levels, size: int) -> Levels:
    """Resize so that the height, or else the width, is ``size``, and pad with 0 on the right or below.

    Bilinear and antialiased, in floating point; the aspect is kept. Shape ``(H, W)`` becomes ``(size, size)``.

    Example:
        >>> fit_square(np.ones((4, 2), np.float32), 2).tolist()
        [[1.0, 0.0], [1.0, 0.0]]
    """
    from PIL import Image

    height, width = levels.shape
    scale = size / max(height, width)
    shape = max(1, round(width * scale)), max(1, round(height * scale))
    picture = Image.fromarray(np.ascontiguousarray(levels, np.float32))
    resized = np.asarray(picture.resize(shape, Image.Resampling.BILINEAR), np.float32)
    return np.pad(resized, ((0, size - shape[1]), (0, size - shape[0])))


def to_bytes(levels: Levels) -> NDArray[np.uint8]:
    """Values from 0 on as 0 to 255, rounded; the highest becomes 255. Zeros stay zeros.

    Example:
        >>> to_bytes(np.float32([0.0, 0.25, 0.5])).tolist()
        [0, 128, 255]
    """
    highest = float(levels.max(initial=0))
    if highest <= 0:
        return np.zeros(levels.shape, np.uint8)
    return np.asarray(np.rint(levels * (255 / highest)), np.uint8)
