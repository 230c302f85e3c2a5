"""PGM and PPM files: their own maximum is the scale, to which Pillow stretches the values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.files.raster import FULL_DEPTH, Raster, Span


class Pnm(Raster):
    """A PBM, PGM, PPM or PFM file."""

    def span(self, values: NDArray[np.number], bits: int) -> Span:
        """16 bits; stated ones count only where the file's own maximum is 65535, and so says nothing."""
        if self.image.mode == "F":
            return super().span(values, bits)
        says_nothing = "'raw'" in self.coding or "65535" in self.coding
        return Span(0, 2 ** (bits if says_nothing and bits else FULL_DEPTH) - 1)
