"""Image files that Pillow opens: JPEG, WebP, BMP, ...; the base of the kinds with rules of their own."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Transpose

from grandrounds.data.images.files.picture import Picture, Rule, in_srgb, on_ground, scaled
from grandrounds.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

ORIENTATION = 0x0112
UPRIGHT = 1
SIDES_SWAPPED = (5, 6, 7, 8)
"""EXIF orientations of pictures that are stored lying on a side."""
FULL_DEPTH = 16
OPAQUE = 255
DEEP_MODES = ("I", "F")
"""How Pillow's names of modes with more than eight bits a pixel begin."""


TURNS: Mapping[int, Transpose] = MappingProxyType(
    {
        2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
    }
)  # fmt: skip
"""What makes an image upright, by its EXIF orientation."""


def has_transparency(image: Image) -> bool:
    """Whether a pixel of the image is not fully opaque."""
    lowest = image.convert("RGBA").getchannel("A").getextrema()[0] if image.has_transparency_data else OPAQUE
    return float(lowest) < OPAQUE  # type: ignore[arg-type]


class Span(NamedTuple):
    """The values that are black and white."""

    black: float
    white: float


class Raster:
    """One image file, open and not yet decoded.

    Args:
        image: as Pillow opened it.
        data: the file's bytes.
        name: of the image, for errors.
    """

    turned_on_loading = False
    """Whether Pillow turns such files itself."""

    def __init__(self, image: ImageFile, data: bytes, name: str) -> None:
        self.image = image
        self.data = data
        self.name = name
        self.coding = str(image.tile)
        """How the pixels are stored, in Pillow's words; it forgets them when they are decoded."""
        self._stated = UPRIGHT

    @property
    def frames(self) -> int:
        """The number of images in the file, without smaller copies and previews of others."""
        return int(getattr(self.image, "n_frames", 1))

    @property
    def inverted(self) -> bool:
        """Whether the decoded values are high where the image is dark."""
        return False

    def span(self, values: NDArray[np.number], bits: int) -> Span:
        """What is black and white in a grey image of more than eight bits; ``bits`` is 0 or what the data set states.

        Raises:
            DataError: if neither file nor data set says it.
        """
        if self.image.mode in DEEP_MODES:
            raise DataError(
                f"{self.name} has 32 bits per pixel and no stated range; save it with 8 or 16 bits per pixel"
            )
        return Span(0, 2 ** (bits or FULL_DEPTH) - 1)

    def values(self) -> NDArray[np.number]:
        """The stored values of a grey image, upright, shape ``(H, W)``."""
        return np.asarray(self.upright)

    def colours(self) -> tuple[Image, tuple[Rule, ...]]:
        """The upright image without palette, alpha or inks, mode ``L`` or ``RGB``, in sRGB; and the rules that this took."""
        image, profile = self.upright, self.image.info.get("icc_profile")
        ground = has_transparency(image)
        if ground or image.mode == "1":
            image = on_ground(image) if ground else image.convert("L")
        elif image.mode not in ("L", "RGB", "CMYK", "LAB") or not profile:
            # By way of RGBA: a palette may state its transparency in a way that RGB alone cannot take.
            image = image.convert("RGBA") if image.mode in ("P", "PA") else image
            image = image if image.mode in ("L", "RGB") else image.convert("RGB")
        shown = in_srgb(image, profile)
        rules: tuple[Rule, ...] = ("profile",) if shown is not image else ()
        shown = shown if shown.mode in ("L", "RGB") else shown.convert("RGB")
        return shown, (*rules, "ground") if ground else rules

    @property
    def deep(self) -> bool:
        """Whether the values are grey ones of more than eight bits, or with a sign."""
        return self.image.mode.startswith(DEEP_MODES)

    @cached_property
    def upright(self) -> Image:
        """The decoded image, turned as its EXIF orientation says."""
        if self.turned_on_loading:
            self._stated = self._orientation()
        self.image.load()
        if not self.turned_on_loading:  # only now: PNG files may state it after the pixels
            self._stated = self._orientation()
        turn = TURNS.get(self._stated)
        return self.image if turn is None or self.turned_on_loading else self.image.transpose(turn)

    def picture(self, bits: int = 0, draft: int = 0) -> Picture:
        """Decode the image.

        Args:
            bits: of a grey image with more than eight, where the data set states them; else 0.
            draft: the decoder may reduce the image while both sides stay at least so long; 0 does not let it.

        Raises:
            DataError: if the file's range is not stated, or values are outside it.
        """
        from PIL import Image

        size = self.image.size
        reduced = bool(draft) and self.image.draft(self.image.mode, (draft, draft)) is not None
        sixteen_bit_colour = not self.deep and ";16" in self.coding
        if bits and sixteen_bit_colour:
            raise DataError(f"{self.name} has 16 bits per colour, and bits is for grey images; save it with 8 bits")
        coloured: tuple[Rule, ...] = ()
        if self.deep:
            values = self.values()
            grey = scaled(values, *self.span(values, bits), self.name)
            image = Image.fromarray(255 - grey if self.inverted else grey)
        else:
            image, coloured = self.colours()
        rules: dict[Rule, bool] = {
            "orientation": self._stated in TURNS,
            "polarity": self.deep and self.inverted,
            "palette": self.image.mode in ("P", "PA"),
            "depth": self.deep or sixteen_bit_colour,
        }
        applied = (*(rule for rule, holds in rules.items() if holds), *coloured)
        return Picture(image, applied, (size[::-1] if self._stated in SIDES_SWAPPED else size) if reduced else None)

    def levels(self) -> NDArray[np.float32]:
        """Grey levels with all bits, upright and bright is high, in the file's own unit; colours become luma."""
        if not self.deep:
            return np.asarray(self.colours()[0].convert("L"), np.float32)
        values = self.values().astype(np.float32)
        return values.max() - values if self.inverted else values

    def _orientation(self) -> Any:
        # A damaged EXIF block is no reason to refuse a picture: viewers show it as it is stored.
        with suppress(Exception):
            return self.image.getexif().get(ORIENTATION, UPRIGHT)
        return UPRIGHT


class WithPreviews(Raster):
    """A file whose further images are previews, sizes or parts of the first, such as MPO of phones."""

    frames = 1


class Pnm(Raster):
    """A PBM, PGM, PPM or PFM file."""

    def span(self, values: NDArray[np.number], bits: int) -> Span:
        """16 bits; stated ones count only where the file's own maximum is 65535, and so says nothing."""
        if self.image.mode == "F":
            return super().span(values, bits)
        says_nothing = "'raw'" in self.coding or "65535" in self.coding
        return Span(0, 2 ** (bits if says_nothing and bits else FULL_DEPTH) - 1)


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
        """The stated bits, else the file's lowest and highest value, else the whole range of 16 bits; floats 0 to 1."""
        if bits:
            return Span(0, 2**bits - 1)
        low, high = self._tag(LOWEST, None), self._tag(HIGHEST, None)
        if low is not None and high is not None and high > low:
            return Span(float(low), float(high))
        if self._format == FLOAT:
            if not (values.min() >= 0 and values.max() <= 1):
                raise DataError(
                    f"{self.name} has floating-point values that are not all from 0 to 1, and tags SMinSampleValue and "
                    "SMaxSampleValue do not state their range; save it with 8 or 16 bits per pixel"
                )
            return Span(0, 1)
        depth = int(self._tag(BITS, FULL_DEPTH))
        if depth > FULL_DEPTH:
            return super().span(values, bits)
        lowest = -(2 ** (depth - 1)) if self._format == SIGNED else 0
        return Span(lowest, lowest + 2**depth - 1)

    def colours(self) -> tuple[Image, tuple[Rule, ...]]:
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
