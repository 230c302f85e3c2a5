"""Which images of a site look wrong, by small copies of what a network sees; a person decides.

The statistics are medians and median absolute deviations, which a minority of wrong images does not move.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.doctor import DARK
from grandrounds.data.images.decoding import image_digests

COPY_SIDE = 32
"""Longest side of the small copies: enough for levels and layout, and 2,000 of them take 6 MB."""
BRIGHT_PERCENTILE = 99
"""Of an image's levels: a burned-in letter or a hot pixel does not make an image bright."""
FEWEST = 10
"""With fewer images (or images of a device) nothing can be said of what is usual."""
OPPOSITE = -0.4
"""An image that correlates less than this with the median image is its opposite; other lesions and organs stay above."""
NEARER = 0.7
"""An inverted image is nearer than this share of its distance to the median image, once it is inverted back."""
TURNED_SHARE = 0.2
"""Where more images than these are of the rarer format, both are usual."""
FLAT_LEVELS = 8
"""Levels between the 5th and the 95th percentile: less is hardly seen on a screen."""
MASK_SHARE = 0.9
"""Share of pixels at one of two levels: resizing gives the outline of a mask levels between, but few pixels are outline."""
MASK_MINORITY = 0.01
"""Share of pixels at the rarer level: less is a dot or a letter on a flat image."""
APART = 1.5
"""Distance of a device's median colour from that of all images, in robust standard deviations of the images about their
device's median; the known devices of HAM10000 are up to 1.1 apart."""
LEAST_SPREAD = 8.0
"""Levels that a standard deviation has at least here: devices of uniform images differ by some levels without harm."""
MAD_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True, eq=False)
class SmallCopies:
    """Small copies of images, and what is known of each image.

    Attributes:
        images: uint8, shape ``(n, height, width, channels)``.
        names: of the images.
        originals: height, width and channels of each image before resizing; empty if unknown.
        sources: the device (or hospital) of each image, empty text or no entries if unknown.
    """

    images: NDArray[np.uint8]
    names: Sequence[str]
    originals: Sequence[tuple[int, int, int]] = ()
    sources: Sequence[str] = ()

    @cached_property
    def grey(self) -> NDArray[np.float32]:
        """Mean of the channels of each pixel, shape ``(n, pixels)``."""
        grey: NDArray[np.float32] = self.images.mean(3, dtype=np.float32)
        return grey.reshape(len(self.images), -1)


class Suspect(NamedTuple):
    """An image that should be looked at: its row, and why."""

    row: int
    reason: str


def small_copies(images: NDArray[np.uint8], rows: Iterable[int]) -> NDArray[np.uint8]:
    """Every k-th pixel of these rows of ``images``, so that no side is longer than ``COPY_SIDE``; one image at a time."""
    step = -(-max(images.shape[1:3]) // COPY_SIDE)
    chosen = [images[row, ::step, ::step] for row in rows]
    return np.stack(chosen) if chosen else images[:0, ::step, ::step]


def suspicions(copies: SmallCopies) -> dict[str, list[Suspect]]:
    """The suspects of every kind of :data:`SUSPICIONS`, the most conspicuous first."""
    return {kind: look(copies) if len(copies.images) else [] for kind, (_, look) in SUSPICIONS.items()}


def _dark(copies: SmallCopies) -> list[Suspect]:
    bright = np.percentile(copies.grey, BRIGHT_PERCENTILE, axis=1)
    rows = np.flatnonzero((bright < DARK) & (np.ptp(copies.grey, axis=1) > 0))
    return [Suspect(row, f"brightest level {bright[row]:.0f} of 255") for row in _ascending(rows, bright)]


def _inverted(copies: SmallCopies) -> list[Suspect]:
    """Those unlike the median image in layout, colour and level, and more like it once inverted."""
    if len(copies.images) < FEWEST:
        return []
    pixels = copies.images.reshape(len(copies.images), -1).astype(np.float32)
    usual = np.median(pixels, axis=0)
    own, turned = (np.abs(values - usual).mean(1) for values in (pixels, 255 - pixels))
    alike = _correlation(pixels, usual)
    rows = np.flatnonzero((alike < OPPOSITE) & (turned < NEARER * own))
    return [Suspect(row, f"correlation {alike[row]:.2f} with the median image") for row in _ascending(rows, alike)]


def _turned(copies: SmallCopies) -> list[Suspect]:
    sizes = np.array([original[:2] for original in copies.originals], np.int64).reshape(-1, 2)
    tall, wide = (np.flatnonzero(longer) for longer in (sizes[:, 0] > sizes[:, 1], sizes[:, 0] < sizes[:, 1]))
    rarer, usual, word = (tall, wide, "landscape") if len(tall) < len(wide) else (wide, tall, "portrait")
    if len(usual) < FEWEST or len(rarer) > TURNED_SHARE * (len(rarer) + len(usual)):
        return []
    return [Suspect(row, f"{sizes[row, 1]} wide, {sizes[row, 0]} high; most are {word}") for row in rarer.tolist()]


def _flat(copies: SmallCopies) -> list[Suspect]:
    low, high = np.percentile(copies.grey, (5, 95), axis=1)
    rows = np.flatnonzero(high - low < FLAT_LEVELS)
    return [
        Suspect(row, f"levels {low[row]:.0f} to {high[row]:.0f} in nine tenths of the pixels")
        for row in _ascending(rows, high - low)
    ]


def _duplicate(copies: SmallCopies) -> list[Suspect]:
    rows: dict[str, list[int]] = defaultdict(list)
    for row, digest in enumerate(image_digests(copies.images)):
        rows[digest].append(row)
    repeated = [same for digest, same in rows.items() if digest and len(same) > 1]
    return [
        Suspect(row, f"same pixels as {copies.names[same[0] if row != same[0] else same[1]]}")
        for same in repeated
        for row in same
    ]


def _mask(copies: SmallCopies) -> list[Suspect]:
    low, high = copies.grey.min(1, keepdims=True), copies.grey.max(1, keepdims=True)
    near = (high - low) / 16
    shares = np.stack([(copies.grey <= low + near).mean(1), (copies.grey >= high - near).mean(1)])
    at_two = shares.sum(0)
    rows = np.flatnonzero((high > low)[:, 0] & (at_two >= MASK_SHARE) & (shares.min(0) >= MASK_MINORITY))
    return [Suspect(row, f"{at_two[row]:.0%} of the pixels at two levels") for row in _ascending(rows, -at_two)]


def _apart(copies: SmallCopies) -> list[Suspect]:
    """Images of a device that has at most half of them, and whose median colour is far from that of all images."""
    colours = copies.images.mean((1, 2), dtype=np.float32)
    sources = np.array(copies.sources)
    named = {name: np.flatnonzero(sources == name) for name in sorted(set(copies.sources) - {""})}
    named = {name: rows for name, rows in named.items() if len(rows) >= FEWEST}
    if len(named) < 2:
        return []
    medians = {name: np.median(colours[rows], axis=0) for name, rows in named.items()}
    about = np.concatenate([np.abs(colours[rows] - medians[name]) for name, rows in named.items()])
    spread = np.maximum(MAD_TO_DEVIATION * np.median(about, axis=0), LEAST_SPREAD)
    # The median of all images is that of the majority: one odd device does not make the others look odd.
    usual = np.median(colours[np.concatenate([*named.values()])], axis=0)
    suspects = []
    for name, rows in named.items():
        if 2 * len(rows) <= len(about) and (np.abs(medians[name] - usual) / spread).max() > APART:
            reason = f"{name}: median colour {_levels(medians[name])}, of all images {_levels(usual)}"
            suspects += [(place, Suspect(row, reason)) for place, row in enumerate(rows.tolist())]
    return [suspect for _, suspect in sorted(suspects, key=lambda pair: pair[0])]  # devices in turn


SUSPICIONS: Mapping[str, tuple[str, Callable[[SmallCopies], list[Suspect]]]] = MappingProxyType(
    {
        "dark": ("almost black; deep grey files may need bits in grandrounds.json", _dark),
        "inverted": ("a negative of what the site's other images show", _inverted),
        "turned": ("portrait among landscape, or landscape among portrait", _turned),
        "flat": ("almost one level", _flat),
        "duplicate": ("the same pixels under another name", _duplicate),
        "mask": ("two levels only, as a segmentation has", _mask),
        "device apart": ("a source (device) whose colours or brightness are far from those of all images", _apart),
    }
)
"""Kinds of suspicion: what is meant, and how it is found."""


def _ascending(rows: NDArray[np.int64], by: NDArray[np.floating]) -> NDArray[np.int64]:
    return rows[np.argsort(by[rows], kind="stable")]


def _correlation(pixels: NDArray[np.float32], usual: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pearson's correlation of each row with ``usual``; 0 where one of them is constant."""
    centred, reference = pixels - pixels.mean(1, keepdims=True), usual - usual.mean()
    scale = np.sqrt((centred**2).sum(1) * (reference**2).sum())
    alike: NDArray[np.float32] = np.divide(centred @ reference, scale, out=np.zeros_like(scale), where=scale > 0)
    return alike


def _levels(colour: NDArray[np.float32]) -> str:
    return "/".join(f"{level:.0f}" for level in colour)
