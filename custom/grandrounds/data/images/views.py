"""Weak and strong views of images, each drawn from a generator of its own.

FixMatch-like methods train on a weak view (flips, rotation, slight colour jitter) and on a strong one (RandAugment);
the choice and ranges are FedPerl's (Bdair et al., MELBA 2022). A view depends on its key, its step and its position in
the batch alone, so that the strong views of the few samples that pass a confidence threshold can be drawn after the
weak ones were predicted, and the result is as if all had been drawn.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from grandrounds.data.images.randaugment import from_pil, strong_view, to_pil

View = Literal["weak", "strong", "none", "mild", "turns"]
"""What is done to an image; ``none`` leaves it as it is (FedMatch's weak view), ``mild`` is FedIRM's, ``turns`` is for
images without an upper side, such as cells. New kinds go to the end: the position of a kind selects its random stream."""

DEGREES = 20.0
BRIGHTNESS = 32 / 255
SATURATION = 0.5
MILD_DEGREES = 10.0
MILD_SHIFT = 0.02


class WeakParameters(NamedTuple):
    """What the weak view does to one image: flips, degrees anticlockwise, factors of the jitter and their order."""

    flip_horizontal: bool
    flip_vertical: bool
    degrees: float
    brightness: float
    saturation: float
    brightness_first: bool


def draw_weak_parameters(generator: np.random.Generator) -> WeakParameters:
    """Draw the weak view's parameters.

    Both flips have probability 1/2; the angle is uniform in [-20, 20] degrees, the brightness factor in
    [1 - 32/255, 1 + 32/255], the saturation factor in [0.5, 1.5]; either jitter comes first with probability 1/2.
    """
    horizontal, vertical, angle, brightness, saturation, order = generator.random(6).tolist()
    return WeakParameters(
        flip_horizontal=horizontal < 0.5,
        flip_vertical=vertical < 0.5,
        degrees=DEGREES * (2 * angle - 1),
        brightness=1 + BRIGHTNESS * (2 * brightness - 1),
        saturation=1 + SATURATION * (2 * saturation - 1),
        brightness_first=order < 0.5,
    )


def apply_weak(image: NDArray[np.uint8], parameters: WeakParameters) -> NDArray[np.uint8]:
    """Flip, rotate and jitter one image.

    The rotation takes the nearest pixel and fills the corners with black. A grey image has no saturation to change.

    Raises:
        ValueError: if the image is not uint8 ``(height, width, 1 or 3)``.
    """
    view = to_pil(image[:: -1 if parameters.flip_vertical else 1, :: -1 if parameters.flip_horizontal else 1])
    view = view.rotate(parameters.degrees, Image.Resampling.NEAREST, fillcolor=(0,) * len(view.getbands()))
    if parameters.brightness_first:
        view = ImageEnhance.Brightness(view).enhance(parameters.brightness)
    view = ImageEnhance.Color(view).enhance(parameters.saturation)
    if not parameters.brightness_first:
        view = ImageEnhance.Brightness(view).enhance(parameters.brightness)
    return from_pil(view)


def weak_view(image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
    """FedPerl's weak view of an image: random flips, rotation and colour jitter.

    Raises:
        ValueError: if the image is not uint8 ``(height, width, 1 or 3)``.
    """
    return apply_weak(image, draw_weak_parameters(generator))


def mild_view(image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
    """FedIRM's view of an image: a slight rotation and shift, and a horizontal flip with probability 1/2.

    The angle is uniform in [-10, 10] degrees, the shift in [-2 %, 2 %] of width and height, in whole pixels; nearest pixels,
    black corners. Drawn twice independently it makes the two views of an image (Liu et al., MICCAI 2021, authors' code).

    Raises:
        ValueError: if the image is not uint8 ``(height, width, 1 or 3)``.
    """
    angle, right, down, flip = generator.random(4).tolist()
    shift = [round(MILD_SHIFT * size * (2 * u - 1)) for size, u in zip(image.shape[1::-1], (right, down), strict=True)]
    view = to_pil(image)
    black = (0,) * len(view.getbands())
    degrees = MILD_DEGREES * (2 * angle - 1)
    view = view.rotate(degrees, Image.Resampling.NEAREST, translate=(shift[0], shift[1]), fillcolor=black)
    return from_pil(view)[:, :: -1 if flip < 0.5 else 1].copy()


def turned_view(image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
    """One of the eight orientations of a square image: quarter turns, mirrored or not; all are equally likely.

    Raises:
        ValueError: if the image is not square.

    Example:
        >>> image = np.array([[[1], [2]], [[3], [4]]], dtype=np.uint8)
        >>> turned_view(image, np.random.Generator(np.random.Philox(1)))[..., 0].tolist()
        [[3, 1], [4, 2]]
    """
    if image.shape[0] != image.shape[1]:
        raise ValueError(f"quarter turns need square images, got {image.shape}")
    way = int(generator.integers(8))
    return np.rot90(image[:, :: -1 if way >= 4 else 1], way % 4).copy()


def sample_generator(view: View, key: int, step: int, position: int) -> np.random.Generator:
    """The generator of one view of one sample, independent of the order in which generators are made.

    ``key`` is the seed of the purpose, for example ``derive_seed(run, round, site, "unlabelled")``; ``step`` the local step
    and ``position`` the sample's position in the step's batch, both from 0. Views of different kinds share nothing.
    """
    # The lowest word counts the draws; the upper three, which no stream ever reaches, separate the streams.
    counter = np.array([0, position, step, 1 + get_args(View).index(view)], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def draw_views(
    images: NDArray[np.uint8],
    rows: NDArray[np.integer],
    view: View,
    key: int,
    step: int,
    equalize_noop: bool = False,
    positions: NDArray[np.integer] | None = None,
    strong_levels: tuple[int, int] | None = None,
) -> NDArray[np.uint8]:
    """Draw one view of each image of a batch, or of some of them.

    Args:
        images: all images, shape ``(samples, height, width, channels)``, values 0..255; may be memory-mapped.
        rows: the batch: which images, by row.
        view: "weak" flips, rotates and jitters, "strong" is RandAugment of the image itself, "none" is the image itself,
            "mild" rotates, shifts and flips a little, "turns" by quarters and mirrors.
        key: the purpose's seed; see :func:`sample_generator`.
        step: the local step, from 0.
        equalize_noop: as in :func:`~grandrounds.data.images.randaugment.strong_view`.
        positions: draw only these positions of the batch; what comes out for them is as if all had been drawn.
        strong_levels: least and greatest strength of the strong view, see
            :func:`~grandrounds.data.images.randaugment.draw_operations`; None draws from all levels.

    Returns:
        A new array of shape ``(batch, height, width, channels)``, or ``(len(positions), ...)``.

    Raises:
        ValueError: if ``images`` is not uint8 with four dimensions, there is no such view, or the levels are out of
            range.
    """
    if images.dtype != np.uint8 or images.ndim != 4:
        raise ValueError(f"images must be uint8 (samples, height, width, channels), got {images.dtype} {images.shape}")
    if view not in get_args(View):
        raise ValueError(f"view must be one of {', '.join(get_args(View))}, got {view!r}")
    chosen = np.arange(len(rows)) if positions is None else positions
    batch: NDArray[np.uint8] = np.array(images[rows[chosen]])
    if view == "none":
        return batch
    for index, position in enumerate(chosen.tolist()):
        generator = sample_generator(view, key, step, position)
        if view == "weak":
            batch[index] = weak_view(batch[index], generator)
        elif view == "mild":
            batch[index] = mild_view(batch[index], generator)
        elif view == "turns":
            batch[index] = turned_view(batch[index], generator)
        else:
            batch[index] = strong_view(batch[index], generator, equalize_noop, strong_levels)
    return batch
