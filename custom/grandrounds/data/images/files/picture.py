"""An image as a person sees it: upright, bright is high, eight bits; and by which rules it became so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from grandrounds.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

Rule = Literal["orientation", "polarity", "palette", "depth", "modality LUT", "VOI LUT", "window", "stretch", "padding"]
"""What was done to the stored values: turned as EXIF says, inverted because the file stores white as low, looked up as
colours, scaled from more bits to eight, looked up or windowed as the DICOM header says, stretched between percentiles, or
stretched without the values that the header calls padding."""

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
