"""Views: what may be done to an image at random before a network sees it.

FixMatch-like methods train on a weak view (flips, rotation, slight colour jitter) and on a strong one (RandAugment);
the choice and ranges are FedPerl's (Bdair et al., MELBA 2022). A new view is a class with :meth:`View.draw` and a row in
:data:`VIEWS`; in a plug-in it is registered by
:func:`~grandrounds.data.images.augmentation.register_view` instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from grandrounds.data.images.randaugment import Strong, from_pil, to_pil

WEAK_DEGREES = 20.0
BRIGHTNESS_CHANGE = 32 / 255
SATURATION_CHANGE = 0.5
MILD_DEGREES = 10.0
MILD_SHIFT = 0.02


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
        "weak": RegisteredView(Weak, stream=1),
        "strong": RegisteredView(Strong, stream=2),
        "none": RegisteredView(Unchanged, stream=3),
        "mild": RegisteredView(Mild, stream=4),
        "turns": RegisteredView(Turns, stream=5),
        "half_turn": RegisteredView(HalfTurn, stream=6),
    }
)
"""The package's views."""
