"""An image as a person sees it: upright, bright is high, eight bits; and by which rules it became so."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from grandrounds.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageCms import ImageCmsTransform

Rule = Literal[
    "orientation", "polarity", "palette", "depth", "modality LUT", "VOI LUT", "window", "stretch", "padding",
    "profile", "ground",
]  # fmt: skip
"""What was done to the stored values: turned as EXIF says, inverted because the file stores white as low, looked up as
colours, scaled from more bits to eight, looked up or windowed as the DICOM header says, stretched between percentiles,
stretched without the values that the header calls padding, turned from the file's colour profile to sRGB, or laid on the
ground of what is transparent, which is black."""

EIGHT_BITS = 255


@dataclass(frozen=True, eq=False)
class Picture:
    """A decoded image.

    Attributes:
        image: of eight bits, mode ``L`` or ``RGB``.
        rules: those that were applied, each once.
        reduced_from: width and height of the image, where the decoder was allowed to reduce it.
    """

    image: Image
    rules: tuple[Rule, ...] = ()
    reduced_from: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the image as it is in its file."""
        width, height = self.reduced_from or self.image.size
        return height, width, len(self.image.getbands())


def in_srgb(image: Image, profile: bytes | None) -> Image:
    """An image of mode ``L``, ``RGB``, ``CMYK`` or ``LAB`` as its ICC profile says it is shown on a screen of sRGB.

    The same object where there is no profile, it is that of sRGB, or it is damaged or of other colours than the image, as
    viewers ignore it then.
    """
    transform = _to_srgb(profile, image.mode) if profile else None
    if transform is None:
        return image
    shown = transform.apply(image)
    return shown.getchannel(0) if image.mode == "L" else shown


@lru_cache(maxsize=16)
def _to_srgb(profile: bytes, mode: str) -> ImageCmsTransform | None:
    """The transform; None if no level of a coarse grid of colours changes by more than one."""
    from PIL import Image, ImageCms

    with suppress(Exception):  # ImageCms raises almost anything on damaged profiles
        own, screen = ImageCms.ImageCmsProfile(io.BytesIO(profile)), ImageCms.createProfile("sRGB")
        transform = ImageCms.buildTransform(own, screen, mode, "RGB", flags=ImageCms.Flags.NOCACHE)
        if mode not in ("L", "RGB"):
            return transform
        steps = np.arange(0, 256, 17, dtype=np.uint8)
        grid = np.stack(np.meshgrid(steps, steps, steps), -1).reshape(16, -1, 3)
        tried = Image.fromarray(grid if mode == "RGB" else grid[..., 0])
        change = np.abs(np.asarray(transform.apply(tried), np.int64) - np.asarray(tried.convert("RGB"), np.int64))
        return transform if change.max() > 1 else None
    return None


def on_ground(image: Image) -> Image:
    """An image that states transparency, on black: mode ``L`` where its own is, else ``RGB``."""
    from PIL import Image as Images

    colours = image.convert("RGBA")
    shown = Images.composite(colours.convert("RGB"), Images.new("RGB", image.size), colours.getchannel("A"))
    return shown.convert("L") if image.mode == "L" else shown


def count_rules(applied: Iterable[Sequence[str]]) -> Counter[str]:
    """How many images each rule was applied to.

    Example:
        >>> count_rules([("orientation",), (), ("orientation", "depth")])
        Counter({'orientation': 2, 'depth': 1})
    """
    return Counter(rule for rules in applied for rule in set(rules))


def scaled(values: NDArray[np.number], black: float, white: float, name: str) -> NDArray[np.uint8]:
    """Values between black and white as levels from 0 to 255, rounded.

    Raises:
        DataError: naming the image, if a value is outside, so that the stated range is not that of the file.

    Example:
        >>> scaled(np.array([0, 2048, 4095]), 0, 4095, "a.png").tolist()
        [0, 128, 255]
    """
    lowest, highest = float(values.min()), float(values.max())
    if not (black <= lowest and highest <= white):
        raise DataError(
            f"{name} has values from {lowest:g} to {highest:g}, outside {black:g} to {white:g}; correct bits in the data "
            "set's entry of grandrounds.json, or leave it out"
        )
    return np.rint((values.astype(np.float64) - black) * (EIGHT_BITS / (white - black))).astype(np.uint8)


def require_one_frame(frames: int, name: str) -> None:
    """Raise ``DataError`` for a file of several frames: a network would see only the first."""
    if frames > 1:
        raise DataError(f"{name} has {frames} frames, expected one; export each frame as a file of its own")
