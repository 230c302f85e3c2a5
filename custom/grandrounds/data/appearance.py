"""What the doctor says of the pixels themselves: which rules of decoding applied, and which images are almost black."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.fitness import Findings
from grandrounds.data.images.files.picture import count_rules
from grandrounds.data.site import SiteData

DARK = 32
"""An image whose brightest level is below this, an eighth of the range, is dark."""
SHOWN_DARK = 3
AT_ONCE = 256
DONE = {
    "orientation": "turned (EXIF)",
    "polarity": "inverted (white is stored as low)",
    "palette": "coloured by a palette",
    "depth": "scaled from more or fewer bits to 8",
    "modality LUT": "with a modality look-up table",
    "VOI LUT": "shown by a VOI look-up table",
    "window": "shown under a window",
    "stretch": "stretched between percentiles",
    "padding": "stretched without padding",
}


def appearance(data: SiteData) -> Iterator[Findings]:
    """The doctor's checks of the pixels."""
    yield _applied_rules(data)
    yield _dark_images(data)


def _applied_rules(data: SiteData) -> Findings:
    counts = count_rules(data.cache.rules)
    if counts:
        listed = ", ".join(f"{count} {DONE[rule]}" for rule, count in sorted(counts.items()))
        yield "ok", "decoding", f"of {len(data.names)} images: {listed}"
    elif data.cache.rules:
        yield "ok", "decoding", "all images are shown as they are stored"


def _dark_images(data: SiteData) -> Findings:
    dark = _is_dark(data.images)
    dark[data.cache.unreadable] = False
    names = [data.names[row] for row in np.flatnonzero(dark)]
    if names:
        more = f" and {len(names) - SHOWN_DARK} more" if len(names) > SHOWN_DARK else ""
        remedy = (
            "if their files hold 10, 12 or 14 bits in 16, state it in the data set's entry of grandrounds.json "
            '("bits": 12) or make the partition with --bits 12'
        )
        shown = ", ".join(names[:SHOWN_DARK])
        message = (
            f"{len(names)} images use less than an eighth of their range and are almost black: {shown}{more}; {remedy}"
        )
        yield "warning", "dark images", message
    else:
        yield "ok", "dark images", "no image is almost black"


def _is_dark(images: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether an image, shape ``(n, height, width, channels)``, has no bright level and more than one colour."""
    # A part at a time: the images may be a large map.
    parts = [images[start : start + AT_ONCE] for start in range(0, len(images), AT_ONCE)]
    dark = [part.reshape(len(part), -1).max(axis=1) < DARK for part in parts]
    is_dark = np.concatenate(dark) if dark else np.zeros(0, np.bool_)
    for row in np.flatnonzero(is_dark):
        colours = images[row].reshape(-1, images.shape[-1])
        is_dark[row] = (colours != colours[0]).any()
    return is_dark
