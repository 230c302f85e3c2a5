"""Which kind an image file is, seen from its bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from grandrounds.data.images.files.picture import require_one_frame
from grandrounds.data.images.files.raster import Png, Pnm, Raster, Tiff, WithPreviews
from grandrounds.errors import DataError

RASTERS: Mapping[str, type[Raster]] = MappingProxyType(
    {"PNG": Png, "PPM": Pnm, "TIFF": Tiff, **dict.fromkeys(("MPO", "PSD", "ICO", "ICNS"), WithPreviews)}
)
"""Kinds by Pillow's names of formats; any other format is a plain raster."""
DICOM_SUFFIXES = (".dcm", ".dicom", ".ima")
PREFIX = b"DICM"
HEIF_BRANDS = frozenset({b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"})
JPEG_XL = (b"\xff\x0a", b"\0\0\0\x0cJXL ")
DOCUMENTS = frozenset({"PDF", "EPS", "WMF", "FITS", "GRIB", "HDF5", "BUFR", "MPEG"})
"""Formats that Pillow names and does not decode itself; for EPS it would start Ghostscript on the file."""
FIRST_GROUPS = (b"\x02\x00", b"\x08\x00")
"""Groups with which a file without a preamble begins: file meta information, or identification."""


def is_dicom(data: bytes, name: str) -> bool:
    """Whether this is a DICOM file, or is called one; files without a preamble are recognised by their first element."""
    return is_encoded(data) or name.lower().endswith(DICOM_SUFFIXES)


def undecoded_format(data: bytes) -> str:
    """The name of a format of photographs that no decoder here reads, and what to do; empty for any other.

    Example:
        >>> undecoded_format(bytes(4) + b"ftypheic")
        'HEIC (convert to JPEG)'
    """
    kind = "HEIC" if data[4:8] == b"ftyp" and data[8:12] in HEIF_BRANDS else ""
    kind = "JPEG XL" if data.startswith(JPEG_XL) else kind
    return f"{kind} (convert to JPEG)" if kind else ""


def is_encoded(data: bytes) -> bool:
    """Whether these bytes begin as a DICOM file."""
    explicit, implicit = data[4:6].isalpha() and data[4:6].isupper(), int.from_bytes(data[4:8], "little") < len(data)
    return data[128:132] == PREFIX or (data.startswith(FIRST_GROUPS) and (explicit or implicit))


def require_pixels(kind: str, name: str) -> None:
    """Check, before anything is decoded, that a file of this format of Pillow's is an image.

    Raises:
        DataError: naming the file, if it is a document.
    """
    if kind in DOCUMENTS:
        raise DataError(f"{name} is a document ({kind}), not an image; convert it to PNG")


@contextmanager
def open_raster(data: bytes, name: str) -> Iterator[Raster]:
    """An image file that is no DICOM file, open; what its decoder raises inside the block becomes an error of the image.

    Raises:
        DataError: naming the image, if it is no image, is damaged or holds several frames.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            require_pixels(image.format or "", name)
            raster = RASTERS.get(image.format or "", Raster)(image, data, name)
            require_one_frame(raster.frames, name)
            yield raster
    except DataError:
        raise
    except UnidentifiedImageError:
        kind = undecoded_format(data) or f"not an image that can be read ({len(data)} bytes); expected PNG, JPEG, ..."
        raise DataError(f"{name} is {kind}") from None
    except Exception as error:  # decoders raise almost anything on damaged bytes
        raise DataError(f"{name} cannot be decoded: {error}") from error
