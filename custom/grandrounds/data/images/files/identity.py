"""What an image is known by, wherever it lies and whatever it is called: digests of its bytes and of its stored pixels.

A budget is spent for an image, so what identifies it must not change with the program. The stored pixels are taken at full
size, before any window, stretch or resizing, by :func:`stored_pixels`, which is frozen: another decoding gets another
scheme beside it, and an image is known by the digests of all schemes together.
"""

from __future__ import annotations

import hashlib
import io

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.files.encoded import ArrayRow, EncodedFile, EncodedImage
from grandrounds.data.images.files.opening import is_dicom, require_pixels
from grandrounds.protocol.names import STORED_BYTES, STORED_PIXELS

DIGEST_DIGITS = 32
PLAIN_MODES = ("RGB", "L")


def image_identity(image: EncodedImage) -> set[str]:
    """The digests by which an image is known, as ``scheme:digits``; two images that share one are the same.

    A file has that of its bytes and, if it can be decoded and has more than one value, that of its pixels; a row of an
    array has the latter alone. So a PNG of a JPEG's pixels, and a row of an npz file with them, are the same image; a
    smaller copy, or a JPEG of a PNG, is not.
    """
    identities = set()
    if isinstance(image, EncodedFile):
        identities.add(f"{STORED_BYTES}:{hashlib.sha256(image.data).hexdigest()[:DIGEST_DIGITS]}")
    try:
        pixels = _pixels(image)
        if pixels.size and (pixels != pixels.flat[0]).any():
            identities.add(f"{STORED_PIXELS}:{_pixel_digest(pixels)}")
    except Exception:  # decoders raise almost anything on damaged bytes; no network sees their pixels
        return identities
    return identities


def _pixels(image: EncodedImage) -> NDArray[np.generic]:
    if isinstance(image, EncodedFile):
        return stored_pixels(image.data, image.name)
    if isinstance(image, ArrayRow):
        return image.pixels
    raise TypeError(f"{type(image).__name__} has no stored pixels")


def stored_pixels(data: bytes, name: str) -> NDArray[np.generic]:
    """The pixels of an image file as they are stored, at full size, ``(H, W)`` or ``(H, W, 3)``. Frozen: never change it.

    EXIF orientation is applied, a palette is looked up, alpha is dropped; no value is scaled. Errors are the decoder's.
    """
    if is_dicom(data, name):
        from pydicom import dcmread

        return np.asarray(dcmread(io.BytesIO(data), force=True).pixel_array)
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data)) as opened:
        require_pixels(opened.format or "", name)
        image = ImageOps.exif_transpose(opened)
        if image.mode.startswith(("I", "F")) or image.mode in PLAIN_MODES:
            return np.asarray(image)
        return np.asarray(image.convert("L" if image.mode in ("1", "LA") else "RGBA").convert("RGB"))


def _pixel_digest(pixels: NDArray[np.generic]) -> str:
    """Of shape and values, whatever type has them; grey in three equal channels is grey. Frozen, too."""
    if pixels.ndim == 3 and pixels.shape[2] == 3 and (pixels == pixels[..., :1]).all():
        pixels = pixels[..., 0]
    whole = pixels.dtype.kind in "iub"
    low, high = (int(pixels.min()), int(pixels.max())) if whole else (-1, 0)
    kind = "<f4" if not whole else "|u1" if 0 <= low <= high < 2**8 else "<u2" if 0 <= low <= high < 2**16 else "<i4"
    values = np.ascontiguousarray(pixels.astype(kind))
    return hashlib.sha256(f"{kind} {values.shape} ".encode() + values.tobytes()).hexdigest()[:DIGEST_DIGITS]
