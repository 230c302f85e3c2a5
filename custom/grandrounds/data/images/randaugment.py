"""RandAugment with the operations and ranges of FedPerl's strong view.

Six operations are drawn with replacement from thirteen, each with one of ten equally spaced magnitudes, and applied
one after the other to the raw image (Cubuk et al., "RandAugment", CVPR Workshops 2020; the table of ranges is that of
FedPerl: Bdair et al., "Semi-Supervised Federated Peer Learning for Skin Lesion Classification", MELBA 2022). There is
no cutout and no weak transform before it. FedMatch (Jeong et al., ICLR 2021) draws the strength of each image first, and
magnitudes below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

OPERATIONS_PER_IMAGE = 6
MAGNITUDE_LEVELS = 10
FILL_GREY = 128

# First and last magnitude of each operation; the ten levels are equally spaced between them.
RANGES: Mapping[str, tuple[float, float]] = MappingProxyType({
    "shearX": (0.0, 0.3), "shearY": (0.0, 0.3), "translateX": (0.0, 0.2), "translateY": (0.0, 0.2),
    "rotate": (0.0, 360.0), "color": (0.0, 0.9), "posterize": (8.0, 4.0), "solarize": (256.0, 231.0),
    "contrast": (0.0, 0.5), "sharpness": (0.0, 0.9), "brightness": (0.0, 0.3), "autocontrast": (0.0, 0.0),
    "equalize": (0.0, 0.0),
})  # fmt: skip
OPERATION_NAMES = tuple(RANGES)
# Turning one way only, and operations without a direction, ignore the sign.
UNSIGNED = frozenset({"rotate", "posterize", "solarize", "autocontrast", "equalize"})


class Operation(NamedTuple):
    """One drawn operation: its name, its magnitude level in 0..9, and its sign (-1 or 1)."""

    name: str
    level: int
    sign: int = 1


def magnitude(operation: Operation) -> float:
    """The signed magnitude of an operation, from the table of ranges.

    Returns:
        Shear: slope; translation: fraction of the side; rotation: degrees; colour, contrast, sharpness and brightness:
        what is added to the factor 1; posterize: bits kept (a whole number); solarize: threshold in grey levels.

    Example:
        >>> magnitude(Operation("rotate", 9, -1)), magnitude(Operation("shearX", 9, -1))
        (360.0, -0.3)
    """
    first, last = RANGES[operation.name]
    value = first + (last - first) * operation.level / (MAGNITUDE_LEVELS - 1)
    if operation.name == "posterize":
        return float(round(value))
    return value if operation.name in UNSIGNED else operation.sign * value


def draw_operations(generator: np.random.Generator, strengths: tuple[int, int] | None = None) -> list[Operation]:
    """Draw six operations with replacement, each with its own level and sign.

    Without ``strengths`` levels are uniform in 0..9. With them a strength M is drawn first, uniformly from the minimum to
    the maximum (included), both from 1 to 10, and all six levels are uniform in 0..M-1; FedMatch's strengths are 2 and 5.

    Raises:
        ValueError: if the strengths are not in that range and order.

    Example:
        >>> {level for _, level, _ in draw_operations(np.random.default_rng(0), strengths=(1, 1))}  # the weakest
        {0}
    """
    names = generator.integers(len(OPERATION_NAMES), size=OPERATIONS_PER_IMAGE).tolist()
    levels = generator.integers(_draw_strength(generator, strengths), size=OPERATIONS_PER_IMAGE).tolist()
    signs = generator.integers(2, size=OPERATIONS_PER_IMAGE).tolist()
    return [
        Operation(OPERATION_NAMES[name], level, 2 * sign - 1)
        for name, level, sign in zip(names, levels, signs, strict=True)
    ]


def _draw_strength(generator: np.random.Generator, strengths: tuple[int, int] | None) -> int:
    """How many of the levels may be drawn."""
    if strengths is None:
        return MAGNITUDE_LEVELS
    least, greatest = strengths
    if not 1 <= least <= greatest <= MAGNITUDE_LEVELS:
        raise ValueError(f"strengths must be the least and the greatest, from 1 to {MAGNITUDE_LEVELS}, got {strengths}")
    return int(generator.integers(least, greatest, endpoint=True))


def apply_operation(image: Image.Image, operation: Operation, equalize_noop: bool = False) -> Image.Image:
    """Apply one operation to an image of mode "RGB" or "L".

    Shears interpolate bilinearly; rotations and translations take the nearest pixel. Pixels from outside are grey (128).
    ``color`` leaves a grey image unchanged. With ``equalize_noop``, "equalize" does nothing, as in FedPerl's published code.

    Raises:
        ValueError: if the operation does not exist, or its level is not in 0..9.
    """
    amount = magnitude(operation)
    if operation.name == "equalize" and equalize_noop:
        return image
    return _FUNCTIONS[operation.name](image, amount)


@dataclass(frozen=True)
class Strong:
    """FedPerl's strong view of a raw image: six random operations.

    Attributes:
        equalize_noop: as in :func:`apply_operation`.
        strong_levels: least and greatest strength, see :func:`draw_operations`; None draws from all levels.
    """

    equalize_noop: bool = False
    strong_levels: tuple[int, int] | None = None

    def draw(self, image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
        """Apply the operations to one image.

        Raises:
            ValueError: if the image is not uint8 ``(height, width, 1 or 3)``, or the strengths are out of range.
        """
        view = to_pil(image)
        for operation in draw_operations(generator, self.strong_levels):
            view = apply_operation(view, operation, self.equalize_noop)
        return from_pil(view)


def to_pil(image: NDArray[np.uint8]) -> Image.Image:
    """Turn an array of shape ``(height, width, 1 or 3)``, values 0..255, into a PIL image.

    Raises:
        ValueError: if the image is not uint8 with one or three channels.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3):
        raise ValueError(f"expected a uint8 image (height, width, 1 or 3), got {image.dtype} {image.shape}")
    return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)


def from_pil(image: Image.Image) -> NDArray[np.uint8]:
    """Turn a PIL image of mode "RGB" or "L" into a new array of shape ``(height, width, 3 or 1)``."""
    pixels = np.array(image)
    return pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels


def _affine(image: Image.Image, matrix: tuple[float, ...], resampling: Image.Resampling) -> Image.Image:
    fill = (FILL_GREY,) * len(image.getbands())
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resampling, fillcolor=fill)


def _shear_x(image: Image.Image, slope: float) -> Image.Image:
    return _affine(image, (1, slope, 0, 0, 1, 0), Image.Resampling.BILINEAR)


def _shear_y(image: Image.Image, slope: float) -> Image.Image:
    return _affine(image, (1, 0, 0, slope, 1, 0), Image.Resampling.BILINEAR)


def _translate_x(image: Image.Image, fraction: float) -> Image.Image:
    return _affine(image, (1, 0, fraction * image.width, 0, 1, 0), Image.Resampling.NEAREST)


def _translate_y(image: Image.Image, fraction: float) -> Image.Image:
    return _affine(image, (1, 0, 0, 0, 1, fraction * image.height), Image.Resampling.NEAREST)


def _rotate(image: Image.Image, degrees: float) -> Image.Image:
    return image.rotate(degrees, Image.Resampling.NEAREST, fillcolor=(FILL_GREY,) * len(image.getbands()))


def _enhancing(kind: Callable[[Image.Image], Any]) -> Callable[[Image.Image, float], Image.Image]:
    return lambda image, change: kind(image).enhance(1 + change)


# The next four give what PIL's ImageOps gives, in a fraction of its time: ImageOps builds its tables in Python.


def _posterize(image: Image.Image, bits: float) -> Image.Image:
    return Image.fromarray(np.asarray(image) & np.uint8(256 - 2 ** (8 - int(bits))))


def _solarize(image: Image.Image, threshold: float) -> Image.Image:
    pixels = np.asarray(image)
    return Image.fromarray(np.where(pixels < threshold, pixels, ~pixels))


def _autocontrast(image: Image.Image, _: float) -> Image.Image:
    extrema = np.array(image.getextrema()).reshape(-1, 2).tolist()
    return _map_levels(image, [_stretched(low, high) for low, high in extrema])


def _equalize(image: Image.Image, _: float) -> Image.Image:
    histograms = np.array(image.histogram()).reshape(-1, 256)
    return _map_levels(image, [_equalized(counts) for counts in histograms])


def _map_levels(image: Image.Image, tables: list[NDArray[np.uint8]]) -> Image.Image:
    """Send every grey level of every band through the band's table of 256 entries."""
    pixels = np.asarray(image).reshape(image.height, image.width, len(tables))
    mapped = np.empty_like(pixels)
    for band, table in enumerate(tables):
        mapped[:, :, band] = table.take(pixels[:, :, band])
    return to_pil(mapped)


def _stretched(low: int, high: int) -> NDArray[np.uint8]:
    """The table that stretches the levels ``low..high`` to 0..255."""
    levels = np.arange(256)
    if high > low:
        scale = 255.0 / (high - low)
        levels = np.clip(levels * scale - low * scale, 0, 255)
    return levels.astype(np.uint8)


def _equalized(counts: NDArray[np.int_]) -> NDArray[np.uint8]:
    """The table that makes the cumulative histogram of the 256 levels as straight as it can be."""
    below = np.cumsum(counts) - counts
    step = int(below[counts.nonzero()[0][-1]]) // 255
    # One level only, or too few pixels: nothing can be made straight.
    levels = np.arange(256) if step == 0 else np.minimum((step // 2 + below) // step, 255)
    return levels.astype(np.uint8)


_FUNCTIONS: Mapping[str, Callable[[Image.Image, float], Image.Image]] = MappingProxyType({
    "shearX": _shear_x, "shearY": _shear_y, "translateX": _translate_x, "translateY": _translate_y,
    "rotate": _rotate, "color": _enhancing(ImageEnhance.Color), "posterize": _posterize, "solarize": _solarize,
    "contrast": _enhancing(ImageEnhance.Contrast), "sharpness": _enhancing(ImageEnhance.Sharpness),
    "brightness": _enhancing(ImageEnhance.Brightness), "autocontrast": _autocontrast, "equalize": _equalize,
})  # fmt: skip
