"""Mammograms of all devices in one form: all bits of the file, breast alone, chest wall left, square.

Source: A. Jimenez-Sanchez et al., "Memory-aware curriculum federated learning for breast cancer classification",
Computer Methods and Programs in Biomedicine 229, 2023, which crops the background, resizes to a height of 2048 pixels
with the aspect kept and pads to a square; mirroring follows N. Wu et al., "Deep neural networks improve radiologists'
performance in breast cancer screening", IEEE TMI 39(4), 2020.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.breast_mask import Levels, Mask, bounding_box, breast_mask
from grandrounds.data.images.dicom import read_grey
from grandrounds.data.images.files.opening import is_dicom, open_raster
from grandrounds.errors import DataError

CLEAR_SHAPE = 1.3
"""Ratio of the outer thirds of a breast's mask above which the shape is clear enough to overrule the laterality."""

MINI_MIAS_NAME = re.compile(r"mdb(\d{3})")
"""Films of mini-MIAS: odd numbers are right breasts."""


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
        the laterality, which a DICOM file contains and mini-MIAS tells by the number in a film's name.

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
