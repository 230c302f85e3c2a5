"""A view of one's own: a square somewhere in the image is replaced by the image's mean colour."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import grandrounds as gr


@gr.register_view("cutout", stream=100)
class Cutout:
    """Cutout (DeVries and Taylor, arXiv 1708.04552): a square of half the side is hidden, also beyond the border."""

    def draw(self, image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
        """Hide the square around a random pixel."""
        row, column = generator.integers(image.shape[:2]).tolist()
        reach = min(image.shape[:2]) // 4
        found = image.copy()
        hidden = np.s_[max(0, row - reach) : row + reach, max(0, column - reach) : column + reach]
        found[hidden] = image.mean(axis=(0, 1)).round().astype(np.uint8)
        return found
