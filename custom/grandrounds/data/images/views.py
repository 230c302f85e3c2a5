"""Views: what may be done to an image at random before a network sees it.

FixMatch-like methods train on a weak view (flips, rotation, slight colour jitter) and on a strong one (RandAugment);
the choice and ranges are FedPerl's (Bdair et al., MELBA 2022). A new view is a class with :meth:`View.draw` and a row in
:data:`VIEWS`; in a plug-in it is registered by
:func:`~grandrounds.data.images.augmentation.register_view` instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

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
    "shearX": lambda image, slope: _affine(image, (1, slope, 0, 0, 1, 0), Image.Resampling.BILINEAR),
    "shearY": lambda image, slope: _affine(image, (1, 0, 0, slope, 1, 0), Image.Resampling.BILINEAR),
    "translateX": lambda image, part: _affine(image, (1, 0, part * image.width, 0, 1, 0), Image.Resampling.NEAREST),
    "translateY": lambda image, part: _affine(image, (1, 0, 0, 0, 1, part * image.height), Image.Resampling.NEAREST),
    "rotate": _rotate, "color": _enhancing(ImageEnhance.Color), "posterize": _posterize, "solarize": _solarize,
    "contrast": _enhancing(ImageEnhance.Contrast), "sharpness": _enhancing(ImageEnhance.Sharpness),
    "brightness": _enhancing(ImageEnhance.Brightness), "autocontrast": _autocontrast, "equalize": _equalize,
})  # fmt: skip


WEAK_DEGREES = 20.0
BRIGHTNESS_CHANGE = 32 / 255
SATURATION_CHANGE = 0.5
MILD_DEGREES = 10.0
MILD_SHIFT = 0.02
AFFINE_SIZES = (0.8, 1.1)
AFFINE_SHIFT = 0.025
AFFINE_COLOUR = (0.05, 0.1, 0.1)


ONE_PIXEL = 1 << 16
Places = tuple[int, int, int, int, int, int]
"""Where the pixels of a view come from, ``(a, b, c, d, e, f)``.

Pixel (x, y) is that of the image at ``a x + b y + c`` to the right and ``d x + e y + f`` down, in parts of a pixel of which
there are ``ONE_PIXEL``, rounded down; black outside. These are PIL's numbers for nearest pixels. A view that only moves
pixels has a method ``places(shape, generator)``, which draws what ``draw`` draws.
"""


class View(Protocol):
    """One way to change an image at random; the options of a view are the arguments of its class."""

    def draw(self, image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
        """A view of one image.

        Args:
            image: shape ``(height, width, 1 or 3)``, values 0..255; it must not change.
            generator: the only source of randomness, from the beginning of the sample's own stream.

        Returns:
            An image of the same shape.
        """


class WeakParameters(NamedTuple):
    """What the weak view does to one image: flips, degrees anticlockwise, factors of the jitter and their order."""

    flip_horizontal: bool
    flip_vertical: bool
    degrees: float
    brightness: float
    saturation: float
    brightness_first: bool

    @classmethod
    def drawn(cls, generator: np.random.Generator) -> WeakParameters:
        """Draw the parameters.

        Both flips have probability 1/2; the angle is uniform in [-20, 20] degrees, the brightness factor in
        [1 - 32/255, 1 + 32/255], the saturation factor in [0.5, 1.5]; either jitter comes first with probability 1/2.
        """
        horizontal, vertical, angle, brightness, saturation, order = generator.random(6).tolist()
        return cls(
            flip_horizontal=horizontal < 0.5,
            flip_vertical=vertical < 0.5,
            degrees=WEAK_DEGREES * (2 * angle - 1),
            brightness=1 + BRIGHTNESS_CHANGE * (2 * brightness - 1),
            saturation=1 + SATURATION_CHANGE * (2 * saturation - 1),
            brightness_first=order < 0.5,
        )

    def applied(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Flip, rotate and jitter one image.

        The rotation takes the nearest pixel and fills the corners with black. A grey image has no saturation to change.

        Raises:
            ValueError: if the image is not uint8 ``(height, width, 1 or 3)``.
        """
        view = to_pil(image[:: -1 if self.flip_vertical else 1, :: -1 if self.flip_horizontal else 1])
        view = view.rotate(self.degrees, Image.Resampling.NEAREST, fillcolor=(0,) * len(view.getbands()))
        if self.brightness_first:
            view = ImageEnhance.Brightness(view).enhance(self.brightness)
        view = ImageEnhance.Color(view).enhance(self.saturation)
        if not self.brightness_first:
            view = ImageEnhance.Brightness(view).enhance(self.brightness)
        return from_pil(view)


class Weak:
    """FedPerl's weak view: random flips, rotation and colour jitter."""

    def draw(self, image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
        """See :class:`WeakParameters`."""
        return WeakParameters.drawn(generator).applied(image)


class Unchanged:
    """The image itself; FedMatch's weak view."""

    fixed = True

    def draw(self, image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
        """A copy of the image; nothing is drawn."""
        return image.copy()


class Mild:
    """FedIRM's view of an image: a slight rotation and shift, and a horizontal flip with probability 1/2.

    The angle is uniform in [-10, 10] degrees, the shift in [-2 %, 2 %] of width and height, in whole pixels; nearest pixels,
    black corners. Drawn twice independently it makes the two views of an image (Liu et al., MICCAI 2021, authors' code).
    """

    def draw(self, image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
        """Rotate, shift and flip one image."""
        degrees, shift, flipped = self._drawn(image.shape, generator)
        view = to_pil(image)
        black = (0,) * len(view.getbands())
        view = view.rotate(degrees, Image.Resampling.NEAREST, translate=shift, fillcolor=black)
        return from_pil(view)[:, :: -1 if flipped else 1].copy()

    def places(self, shape: tuple[int, ...], generator: np.random.Generator) -> Places:
        """See :data:`Places`; the rounding is that of PIL's ``rotate``."""
        degrees, (right, down), flipped = self._drawn(shape, generator)
        height, width = shape[:2]
        radians = -math.radians(degrees % 360.0)
        cosine, sine = round(math.cos(radians), 15), round(math.sin(radians), 15)
        x, y = -width / 2 - right, -height / 2 - down
        across = cosine * x + sine * y + width / 2
        along = -sine * x + cosine * y + height / 2
        # Half a pixel, because places are of centres.
        start = _fixed(across + cosine * 0.5 + sine * 0.5), _fixed(along - sine * 0.5 + cosine * 0.5)
        a, b, c, d, e, f = _fixed(cosine), _fixed(sine), start[0], _fixed(-sine), _fixed(cosine), start[1]
        return (-a, b, c + a * (width - 1), -d, e, f + d * (width - 1)) if flipped else (a, b, c, d, e, f)

    @staticmethod
    def _drawn(shape: tuple[int, ...], generator: np.random.Generator) -> tuple[float, tuple[int, int], bool]:
        """Degrees anticlockwise, pixels to the right and down, and whether the result is flipped."""
        angle, right, down, flip = generator.random(4).tolist()
        shift = (round(MILD_SHIFT * shape[1] * (2 * right - 1)), round(MILD_SHIFT * shape[0] * (2 * down - 1)))
        return MILD_DEGREES * (2 * angle - 1), shift, flip < 0.5


class Turns:
    """One of the eight orientations of a square image without an upper side, such as cells; all are equally likely.

    Example:
        >>> image = np.array([[[1], [2]], [[3], [4]]], dtype=np.uint8)
        >>> Turns().draw(image, np.random.Generator(np.random.Philox(1)))[..., 0].tolist()
        [[3, 1], [4, 2]]
    """

    def draw(self, image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
        """Turn by quarters, and mirror or not.

        Raises:
            ValueError: if the image is not square.
        """
        _require_square(image.shape)
        way = int(generator.integers(8))
        return np.rot90(image[:, :: -1 if way >= 4 else 1], way % 4).copy()

    def places(self, shape: tuple[int, ...], generator: np.random.Generator) -> Places:
        """See :data:`Places`; of square images."""
        _require_square(shape)
        way, step, last = int(generator.integers(8)), ONE_PIXEL, (shape[0] - 1) * ONE_PIXEL
        across, along = (step, 0, 0), (0, step, 0)
        for _ in range(way % 4):  # the pixel below comes from the right
            across, along = (-along[0], -along[1], last - along[2]), across
        return (*(across if way < 4 else (-across[0], -across[1], last - across[2])), *along)


class Affine:
    """Rotation by any angle, a change of size, a shift, a mirror image or not, and slightly other colours.

    The angle is uniform over the circle. What is seen measures uniformly 0.8 to 1.1 times the image, its centre moves by at
    most 2.5 % of width and height, and half of the images are mirrored. Pixels are interpolated, and beyond its edges the
    image is reflected. Then brightness changes by a factor in [0.95, 1.05], and saturation and contrast in [0.9, 1.1]. For
    images without an upper side, such as cells or skin lesions.
    """

    def draw(self, image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
        """Move the pixels of one image, then change its colours."""
        angle, size, right, down, mirror, *colours = generator.random(8).tolist()
        height, width = image.shape[:2]
        low, high = AFFINE_SIZES
        # Reaches to the corners of the largest part that is seen, at any angle.
        margin = math.ceil(max(height, width) * (high / math.sqrt(2) + AFFINE_SHIFT))
        around = to_pil(np.pad(image, ((margin, margin), (margin, margin), (0, 0)), mode="symmetric"))
        scale, radians = low + (high - low) * size, 2 * math.pi * angle
        cosine, sine, side = scale * math.cos(radians), scale * math.sin(radians), -1 if mirror < 0.5 else 1
        (a, b), (d, e) = (side * cosine, -sine), (side * sine, cosine)
        x = margin + width * (0.5 + AFFINE_SHIFT * (2 * right - 1)) - (a * width + b * height) / 2
        y = margin + height * (0.5 + AFFINE_SHIFT * (2 * down - 1)) - (d * width + e * height) / 2
        view = around.transform((width, height), Image.Transform.AFFINE, (a, b, x, d, e, y), Image.Resampling.BILINEAR)
        kinds = (ImageEnhance.Brightness, ImageEnhance.Color, ImageEnhance.Contrast)
        for kind, change, drawn in zip(kinds, AFFINE_COLOUR, colours, strict=True):
            view = kind(view).enhance(1 + change * (2 * drawn - 1))
        return from_pil(view)


class HalfTurn:
    """The image turned by 180 degrees; nothing is drawn.

    Example:
        >>> image = np.array([[[1], [2]], [[3], [4]]], dtype=np.uint8)
        >>> HalfTurn().draw(image, np.random.default_rng())[..., 0].tolist()
        [[4, 3], [2, 1]]
    """

    fixed = True

    def draw(self, image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
        """Turn one image."""
        return image[::-1, ::-1].copy()

    def places(self, shape: tuple[int, ...], generator: np.random.Generator) -> Places:
        """See :data:`Places`."""
        return -ONE_PIXEL, 0, (shape[1] - 1) * ONE_PIXEL, 0, -ONE_PIXEL, (shape[0] - 1) * ONE_PIXEL


def _require_square(shape: tuple[int, ...]) -> None:
    if shape[0] != shape[1]:
        raise ValueError(f"quarter turns need square images, got {shape}")


def _fixed(value: float) -> int:
    return math.floor(value * ONE_PIXEL + 0.5)


class RegisteredView(NamedTuple):
    """A view by its name: its class, and the number of its random stream.

    Two views never have the same number, and a number never changes: every result of a run depends on it. The package's
    are below :data:`~grandrounds.data.images.augmentation.FIRST_OWN_STREAM`, those of plug-ins are not.
    """

    make: Callable[..., View]
    stream: int

    @property
    def fixed(self) -> bool:
        """Whether the view of an image is always the same, as a class with ``fixed = True`` says."""
        return bool(getattr(self.make, "fixed", False))


VIEWS: Mapping[str, RegisteredView] = MappingProxyType(
    {
        "weak": RegisteredView(Weak, stream=1), "strong": RegisteredView(Strong, stream=2),
        "none": RegisteredView(Unchanged, stream=3), "mild": RegisteredView(Mild, stream=4),
        "turns": RegisteredView(Turns, stream=5), "half_turn": RegisteredView(HalfTurn, stream=6),
        "affine": RegisteredView(Affine, stream=7),
    }
)  # fmt: skip
"""The package's views."""
