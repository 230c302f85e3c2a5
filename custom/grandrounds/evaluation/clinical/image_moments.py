"""How images look, in a few figures: what a site may release of its training images, and how far a place's images differ.

Of each figure the mean and the mean square over images leave a site. With numbers of images as weights they add up over
sites. Images are those that a network takes; size and aspect are of the images before they were resized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOMENTS = "moments"
"""The tensor of a release, float64, shape ``(2, figures)``: mean and mean square of each figure."""
MOST_LOOKED_AT = 2000
"""The largest number of images of a site that are looked at, evenly spaced."""
NO_MOMENTS = "no site has released image_moments: its policy has no rule for them, or it has too few patients"
ROUNDING_STEPS = 20
"""Released means and deviations are rounded to this part of the least deviation."""
_TOGETHER, _BLOCKS = 32, 16
"""Images that are looked at together, and blocks a side in which coarse detail is looked for."""
LARGEST_FIGURE = 256.0
"""Absolute value of a figure."""
COLOUR_NAMES: Mapping[int, tuple[str, ...]] = {1: ("brightness",), 3: ("red", "green", "blue")}
_LEAST_OF_SHAPE = {"size": 0.25, "aspect": 0.1, "middle": 4.0, "fine detail": 0.1, "coarse detail": 0.1}
_LEAST_OF_COLOUR = 4.0

Array = NDArray[np.float64]


def least_deviations(channels: int) -> dict[str, float]:
    """The figures of an image, in their order, each with its least deviation: images may be all of one size or colour.

    ``size`` is the binary logarithm of the side in pixels (of a square of that area), ``aspect`` that of width over height,
    ``middle`` the levels by which the middle quarter is brighter than the whole, ``fine detail`` the binary logarithm of the
    mean step between neighbouring pixels over their deviation, ``coarse detail`` the same in 16 blocks a side; then the mean
    of each colour and its deviation (contrast), in levels from 0 to 255.

    Example:
        >>> list(least_deviations(1))
        ['size', 'aspect', 'middle', 'fine detail', 'coarse detail', 'brightness', 'contrast in brightness']
    """
    colours = COLOUR_NAMES[channels]
    return {
        **_LEAST_OF_SHAPE,
        **dict.fromkeys((*colours, *(f"contrast in {name}" for name in colours)), _LEAST_OF_COLOUR),
    }


def evenly_spaced(rows: NDArray[np.integer]) -> NDArray[np.integer]:
    """At most ``MOST_LOOKED_AT`` of these rows."""
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), MOST_LOOKED_AT)).round().astype(int)]


def moments_of(images: NDArray[np.uint8], shapes: Sequence[Sequence[int]], rows: NDArray[np.integer]) -> Array:
    """Mean and mean square of each figure.

    Args:
        images: shape ``(n, side, side, channels)``, channels 1 or 3.
        shapes: height and width of each of the n images before it was resized; empty where they are not known.
        rows: of the images to look at, at least one.

    Returns:
        Shape ``(2, figures)``, in the order of :func:`least_deviations`.
    """
    parts = np.array_split(rows, -(-len(rows) // _TOGETHER))
    sides = np.array([shapes[row][:2] for row in rows] if shapes else [images.shape[1:3]] * len(rows), np.float64)
    logs = np.log2(sides.clip(1))
    figures = np.concatenate([_figures(images[part].astype(np.float32)) for part in parts])
    every = np.column_stack([logs.mean(axis=1), logs[:, 1] - logs[:, 0], figures])
    return np.stack([every.mean(axis=0), np.square(every).mean(axis=0)])


def _figures(images: NDArray[np.float32]) -> Array:
    count, side, _, channels = images.shape
    pixels = images.reshape(count, -1, channels)
    colours = np.einsum("ipc->ic", pixels, dtype=np.float64) / side**2
    grey = (images @ np.full(channels, 1 / channels, np.float32)).reshape(count, side, side)
    centred = pixels - colours[:, None].astype(np.float32)
    contrasts = np.sqrt(np.einsum("ipc,ipc->ic", centred, centred) / side**2)
    edge, block = side // 4, max(side // _BLOCKS, 1)
    middle = grey[:, edge : side - edge, edge : side - edge].mean(axis=(1, 2)) - grey.mean(axis=(1, 2))
    cut, blocks = side // block * block, side // block
    coarse = grey[:, :cut, :cut].reshape(count, blocks, block, blocks, block).mean(axis=(2, 4))
    return np.column_stack([middle, _detail(grey), _detail(coarse), colours, contrasts]).astype(np.float64)


def _detail(grey: NDArray[np.float32]) -> NDArray[np.float32]:
    count = max(2 * grey[0].size - sum(grey.shape[1:]), 1)  # an image of one pixel has no steps
    steps = sum(np.abs(np.diff(grey, axis=axis)).sum(axis=(1, 2)) for axis in (1, 2)) / count
    return np.asarray(np.log2((steps + 1) / (grey.std(axis=(1, 2)) + 1)), np.float32)


def spread(moments: Array) -> tuple[Array, Array]:
    """Mean and deviation of each figure, from mean and mean square."""
    mean, square = moments
    return mean, np.sqrt((square - mean**2).clip(0))


def rounded_moments(moments: Array) -> Array:
    """Moments whose means and deviations are rounded: an exact mean of a few values would tell how many there are.

    Example:
        >>> rounded_moments(np.array([[6.5849] + [0.0] * 6, [44.0] + [0.0] * 6]))[:, 0].round(6).tolist()
        [6.5875, 44.035156]
    """
    steps = np.array(list(least_deviations(channels_of(moments)).values())) / ROUNDING_STEPS
    mean, deviation = (np.round(figures / steps) * steps for figures in spread(moments))
    return np.stack([mean, mean**2 + deviation**2])


def channels_of(moments: Array) -> int:
    """Of the images whose moments these are.

    Raises:
        ValueError: if they are no moments.
    """
    channels = next((name for name in COLOUR_NAMES if moments.shape == (2, len(least_deviations(name)))), None)
    if (
        channels is None
        or not (np.abs(moments[0]) <= LARGEST_FIGURE).all()
        or not (moments[1] >= moments[0] ** 2 - 1e-6).all()
    ):
        raise ValueError(f"expected mean and mean square of each figure of images, got shape {moments.shape}")
    return channels


def training_moments(sites: Mapping[str, Array], images: Mapping[str, float]) -> dict[str, Any]:
    """The figures of a run's training images, for its record.

    Args:
        sites: moments of those that have released some.
        images: how many of them each site has; where one does not tell, all sites weigh alike.

    Returns:
        The ``sites``, and ``figures``: by name mean and deviation over images; or why they are ``unavailable``.
    """
    if not sites:
        return {"unavailable": NO_MOMENTS}
    weights = [images.get(site, 0.0) for site in sites]
    total = np.average(list(sites.values()), axis=0, weights=weights if all(weights) else None)
    moments = np.column_stack(spread(total)).round(4).tolist()
    return {"sites": list(sites), "figures": dict(zip(least_deviations(channels_of(total)), moments, strict=True))}
