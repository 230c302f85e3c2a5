"""PNG files: a 16-bit one may state how many of its bits are significant (chunk sBIT)."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.files.raster import FULL_DEPTH, Raster, Span

SIGNATURE_BYTES = 8
PIXEL_CHUNK = b"IDAT"


class Png(Raster):
    """A PNG file."""

    def span(self, values: NDArray[np.number], bits: int) -> Span:
        """The stated bits, else those of sBIT where the values were stored without scaling, else 16.

        By the standard a file of 12 significant bits holds them scaled to 16, with copies of the high bits or zeros below;
        many writers state 12 bits and store 0 to 4095. The two cannot be confused: values of the first kind that are all
        below 4096 are multiples of 16.
        """
        significant = significant_bits(self.data)
        if not bits and 0 < significant < FULL_DEPTH and int(values.max()) < 2**significant:
            below = 2 ** (FULL_DEPTH - significant) - 1
            bits = significant if bool((values.astype(np.int64) & below).any()) else 0
        return super().span(values, bits)


def significant_bits(data: bytes) -> int:
    """The significant bits of the first channel as chunk sBIT states them; 0 if it does not."""
    place = SIGNATURE_BYTES
    while place + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[place : place + 8])
        if kind == b"sBIT" and length:
            return data[place + 8]
        if kind == PIXEL_CHUNK:
            return 0
        place += 12 + length
    return 0
