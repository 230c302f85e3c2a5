"""One image as a reader finds it, before it is decoded: the bytes of a file, or a row of an array."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.decoding import decode_picture
from grandrounds.data.images.files.picture import Picture, scaled
from grandrounds.data.images.files.reading import AS_IN_FILES, Reading
from grandrounds.errors import DataError

if TYPE_CHECKING:
    from grandrounds.data.images.mammogram import Laterality, Levels

DIGEST_BYTES = 16
FULL_WORD = 16


class EncodedImage(ABC):
    """An image that can be decoded.

    Args:
        name: for errors.
        reading: what the data set states of its images.
    """

    def __init__(self, name: str, reading: Reading) -> None:
        self.name = name
        self.reading = reading

    @abstractmethod
    def picture(self, draft: int = 0) -> Picture:
        """Decode it; ``draft`` as of :func:`~grandrounds.data.images.decoding.decode_picture`.

        Raises:
            DataError: naming the image and the cause, if it cannot be decoded.
        """

    @abstractmethod
    def mammogram(self) -> tuple[Levels, Laterality]:
        """Decode it with all its bits, see :func:`~grandrounds.data.images.mammogram.read_mammogram`.

        Raises:
            DataError: naming the image and the cause, if it cannot be decoded.
        """

    @property
    @abstractmethod
    def content(self) -> str:
        """A digest of what is decoded, 32 hexadecimal digits: two images of one content have the same pixels."""


class EncodedFile(EncodedImage):
    """The bytes of an image file, shown under the windows of CT slices if there are some."""

    def __init__(self, data: bytes, name: str, reading: Reading = AS_IN_FILES) -> None:
        super().__init__(name, reading)
        self.data = data

    def picture(self, draft: int = 0) -> Picture:
        """Decode the file."""
        if not self.reading.windows:
            return decode_picture(self.data, self.name, self.reading.bits, draft)
        from PIL import Image

        from grandrounds.data.images.dicom import read_windows

        return Picture(Image.fromarray(read_windows(self.data, self.name, self.reading.windows)), ("window",))

    def mammogram(self) -> tuple[Levels, Laterality]:
        """Decode the file with all its bits."""
        from grandrounds.data.images.mammogram import read_mammogram

        return read_mammogram(self.data, self.name)

    @property
    def content(self) -> str:
        """Of the file's bytes."""
        return hashlib.blake2b(self.data, digest_size=DIGEST_BYTES).hexdigest()


class ArrayRow(EncodedImage):
    """Pixels of an array, ``(H, W)``, ``(H, W, 1)`` or ``(H, W, 3)`` of 8 or 16 bits."""

    def __init__(self, pixels: NDArray[np.generic], name: str, reading: Reading = AS_IN_FILES) -> None:
        super().__init__(name, reading)
        self.pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels

    def picture(self, draft: int = 0) -> Picture:
        """The pixels in eight bits."""
        from PIL import Image

        if self.pixels.dtype == np.uint8:
            return Picture(Image.fromarray(np.ascontiguousarray(self.pixels)))
        values = np.asarray(self.pixels, np.uint16)
        levels = scaled(values, 0, 2 ** (self.reading.bits or FULL_WORD) - 1, self.name)
        return Picture(Image.fromarray(levels), ("depth",))

    def mammogram(self) -> tuple[Levels, Laterality]:
        """Refused: mammograms come with what their files say."""
        raise DataError(
            f"{self.name} is not a file but pixels in an array; mammograms are read from files in a folder or .zip"
        )

    @property
    def content(self) -> str:
        """Of type, shape and pixels."""
        digest = hashlib.blake2b(f"{self.pixels.dtype.str} {self.pixels.shape} ".encode(), digest_size=DIGEST_BYTES)
        digest.update(np.ascontiguousarray(self.pixels).tobytes())
        return digest.hexdigest()
