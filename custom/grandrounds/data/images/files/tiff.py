"""TIFF files: depth, sign, polarity, range and colour map are in tags; Pillow follows some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.files.raster import Raster, Span
from grandrounds.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SUBFILE, BITS, PHOTOMETRIC, COLOUR_MAP, SAMPLE_FORMAT, LOWEST, HIGHEST = 254, 258, 262, 320, 339, 340, 341
REDUCED_OR_MASK = 0b101
WHITE_IS_ZERO = 0
SIGNED, FLOAT = 2, 3


class Tiff(Raster):
    """A TIFF file."""

    turned_on_loading = True

    @property
    def frames(self) -> int:
        """Pages, without those that are marked as smaller copies or masks of others."""
        pages = 0
        for number in range(super().frames):
            self.image.seek(number)
            pages += not self._tag(SUBFILE, 0) & REDUCED_OR_MASK
        self.image.seek(0)
        return max(pages, 1)

    @property
    def deep(self) -> bool:
        """Whether the values are grey ones of more than eight bits, or with a sign."""
        return super().deep or (self.image.mode == "L" and self._format == SIGNED)

    @property
    def inverted(self) -> bool:
        """Pillow inverts what is white at zero if it has up to eight bits."""
        return self.deep and self._tag(PHOTOMETRIC, 1) == WHITE_IS_ZERO

    def values(self) -> NDArray[np.number]:
        """The stored values; Pillow gives those with a sign, or of 32 bits without one, in another type."""
        values = super().values()
        if self._format == SIGNED and values.dtype == np.uint8:
            return values.view(np.int8)
        if self.image.mode == "I" and self._format != SIGNED:
            return values.view(np.uint32)
        return values

    def span(self, values: NDArray[np.number], bits: int) -> Span:
        """The stated bits, else the file's lowest and highest value, else the whole range of its type; floats 0 to 1."""
        if bits:
            return Span(0, 2**bits - 1)
        lowest, highest = self._tag(LOWEST, None), self._tag(HIGHEST, None)
        if lowest is not None and highest is not None and highest > lowest:
            return Span(float(lowest), float(highest))
        if self._format == FLOAT:
            if not (values.min() >= 0 and values.max() <= 1):
                raise DataError(
                    f"{self.name} has floating-point values that are not all from 0 to 1, and tags SMinSampleValue and "
                    "SMaxSampleValue do not state their range; save it with 8 or 16 bits per pixel"
                )
            return Span(0, 1)
        depth = int(self._tag(BITS, 16))
        if self._format == SIGNED:
            return Span(-(2 ** (depth - 1)), 2 ** (depth - 1) - 1)
        return Span(0, 2**depth - 1)

    def colours(self) -> Image:
        """The upright image; a colour map whose words hold eight bits is taken as such, as libtiff's tools do."""
        image = self.upright
        words = self._all(COLOUR_MAP)
        if image.mode == "P" and words and max(words) <= 255:
            third = len(words) // 3
            image.putpalette([words[part * third + entry] for entry in range(third) for part in range(3)])
        return super().colours()

    @property
    def _format(self) -> int:
        return int(self._tag(SAMPLE_FORMAT, 1))

    def _tag(self, number: int, default: Any) -> Any:
        values = self._all(number)
        return values[0] if values else default

    def _all(self, number: int) -> tuple[Any, ...]:
        value = self.image.tag_v2.get(number, ())  # type: ignore[attr-defined]
        return value if isinstance(value, tuple) else (value,)
