"""How an image of any size becomes the square that a network takes: a named preprocessing of the problem.

All sites and the server of a run use the same one, because the server sends it with the problem.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

DRAFT_SIDES = 3
"""How many times the side of the square a drafted image has at least."""


class Sizing(ABC):
    """A way to make a square of an image."""

    meaning: str
    """For model cards."""

    def draft(self, size: int) -> int:
        """The side to which a decoder may reduce the image before; 0 if it may not."""
        return 0

    @abstractmethod
    def shaped(self, image: Image, size: int) -> Image:
        """The image, of mode ``L`` or ``RGB``, as a square of side ``size``."""

    def square(self, image: Image, size: int, channels: int) -> NDArray[np.uint8]:
        """Make a square.

        Args:
            image: of mode ``L`` or ``RGB``.
            size: its side, in pixels, at least one.
            channels: 1 (RGB becomes luma, ITU-R 601) or 3 (grey becomes three equal channels).

        Returns:
            Shape ``(size, size, channels)``, values 0 to 255.
        """
        mode = "L" if channels == 1 else "RGB"
        fitting = image if image.mode == mode else image.convert(mode)
        return np.array(self.shaped(fitting, size)).reshape(size, size, channels)


class Exact(Sizing):
    """Both sides are resized, bilinear and antialiased; the aspect is not kept (FedPerl §1.3 does the same)."""

    meaning = "bilinear with antialiasing, both sides, aspect not kept"

    def shaped(self, image: Image, size: int) -> Image:
        """The resized image."""
        from PIL.Image import Resampling

        return image.resize((size, size), Resampling.BILINEAR)


class Draft(Exact):
    """As exact, but a JPEG decoder may reduce large images before (libjpeg, scaled DCT), which takes a fraction of the time.

    Levels differ from exact ones by a few of 255 at edges.
    """

    meaning = "JPEG decoded at a reduced size, then bilinear with antialiasing, both sides, aspect not kept"

    def draft(self, size: int) -> int:
        """Several times the side of the square."""
        return DRAFT_SIDES * size


class Proportion(Sizing):
    """The aspect is kept: the longer side is resized, and black is added on both sides of the shorter one."""

    meaning = "bilinear with antialiasing, longer side, aspect kept, black added on both sides"

    def shaped(self, image: Image, size: int) -> Image:
        """The resized image in the middle of a black square."""
        from PIL import Image as Images

        scale = size / max(image.size)
        width, height = (max(1, round(side * scale)) for side in image.size)
        square = Images.new(image.mode, (size, size))
        resized = image.resize((width, height), Images.Resampling.BILINEAR)
        square.paste(resized, ((size - width) // 2, (size - height) // 2))
        return square


SIZINGS: Mapping[str, Sizing] = MappingProxyType({"exact": Exact(), "draft": Draft(), "proportion": Proportion()})
"""The preprocessings by their names in problems."""
