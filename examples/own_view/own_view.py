"""Two views: cutout, which hides a square of the image, and one by MONAI's transforms."""

from __future__ import annotations

import numpy as np
from monai.transforms import Compose, RandAffine, RandGaussianNoise
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


@gr.register_view("tilted", stream=102)
class Tilted(gr.MonaiView):
    """The image turned by up to 17 degrees, scaled by up to 10 % and, every second time, with noise."""

    transform = Compose(
        [
            RandAffine(prob=1, rotate_range=0.3, scale_range=0.1, padding_mode="zeros"),
            RandGaussianNoise(prob=0.5, std=0.05),
        ]
    )
