"""From an encoded image to the square that a network takes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import NamedTuple

from grandrounds.data.images.decoding import Pixels, to_square
from grandrounds.data.images.files.encoded import EncodedImage
from grandrounds.data.images.files.reading import AS_IN_FILES, Reading
from grandrounds.data.images.sizing import SIZINGS

Shape = tuple[int, int, int]


class Square(NamedTuple):
    """An image as a network takes it.

    Attributes:
        pixels: shape ``(size, size, channels)``, values 0 to 255.
        shape: height, width and channels of the original.
        rules: those of decoding that were applied, see :data:`~grandrounds.data.images.files.picture.Rule`.
    """

    pixels: Pixels
    shape: Shape
    rules: tuple[str, ...]


@dataclass(frozen=True)
class Preparation:
    """From an encoded image to a square; everything that decides its pixels beside its content.

    Attributes:
        size: side of the square, in pixels.
        channels: 1 or 3.
        reading: of the data set.
        sizing: a name of :data:`~grandrounds.data.images.sizing.SIZINGS`.
    """

    size: int
    channels: int
    reading: Reading = AS_IN_FILES
    sizing: str = "exact"

    def __post_init__(self) -> None:
        if self.size < 1 or self.channels not in (1, 3):
            raise ValueError(f"expected image_size >= 1 and channels 1 or 3, got {self.size} and {self.channels}")

    def square(self, image: EncodedImage) -> Square:
        """Decode and resize; mammograms are prepared before resizing, a synthetic device takes the resized image.

        Raises:
            DataError: naming the image and the cause, if it is damaged or shows no breast.
        """
        if self.reading.preprocess == "mammogram":
            from grandrounds.data.images.mammogram import mammogram_square

            levels, laterality = image.mammogram()
            pixels = mammogram_square(levels, self.size, image.name, laterality)
            return Square(to_square(pixels, self.size, self.channels), (*levels.shape, 1), ())
        sizing = SIZINGS[self.sizing]
        picture = image.picture(sizing.draft(self.size))
        pixels = sizing.square(picture.image, self.size, self.channels)
        device = self.reading.preprocess
        if device != "none":
            from grandrounds.data.images.devices import retaken

            pixels = retaken(pixels, device)
        return Square(pixels, picture.shape, picture.rules)

    def content(self, image: EncodedImage) -> str:
        """A digest by which equal squares are found; the name of a film of mini-MIAS shows the side of its breast."""
        return f"{image.content}{image.name if self.reading.preprocess == 'mammogram' else ''}"

    @property
    def key(self) -> str:
        """A digest of all of it."""
        windows = [[float(centre), float(width)] for centre, width in self.reading.windows]
        content = [self.size, self.channels, windows, self.reading.preprocess, self.reading.bits, self.sizing]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
