"""Which kind an image file is, seen from its bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import IO

from grandrounds.data.images.files.picture import require_one_frame
from grandrounds.data.images.files.raster import Png, Pnm, Raster, WithPreviews
from grandrounds.data.images.files.tiff import Tiff
from grandrounds.errors import DataError

RASTERS: Mapping[str, type[Raster]] = MappingProxyType(
    {
        "PNG": Png,
        "PPM": Pnm,
        "TIFF": Tiff,
        "MPO": WithPreviews,
        "PSD": WithPreviews,
        "ICO": WithPreviews,
        "ICNS": WithPreviews,
    }
)
"""Kinds by Pillow's names of formats; any other format is a plain raster."""


def raster_frames(stream: IO[bytes], name: str) -> int:
    """How many frames an image file holds; none is decoded. A damaged file may make Pillow raise anything."""
    from PIL import Image

    with Image.open(stream) as image:
        return RASTERS.get(image.format or "", Raster)(image, b"", name).frames


@contextmanager
def open_raster(data: bytes, name: str) -> Iterator[Raster]:
    """An image file that is no DICOM file, open; what its decoder raises inside the block becomes an error of the image.

    Raises:
        DataError: naming the image, if it is no image, is damaged or holds several frames.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            raster = RASTERS.get(image.format or "", Raster)(image, data, name)
            require_one_frame(raster.frames, name)
            yield raster
    except DataError:
        raise
    except UnidentifiedImageError:
        raise DataError(
            f"{name} is not an image that can be read ({len(data)} bytes); expected PNG, JPEG, ..."
        ) from None
    except Exception as error:  # decoders raise almost anything on damaged bytes
        raise DataError(f"{name} cannot be decoded: {error}") from error
