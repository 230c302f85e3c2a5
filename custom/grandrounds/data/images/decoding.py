"""From the bytes of one image file to pixels, and from pixels of any size to those of a network."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.files.opening import is_dicom, open_raster
from grandrounds.data.images.files.picture import Picture
from grandrounds.data.images.sizing import SIZINGS

Pixels = NDArray[np.uint8]


def decode_picture(data: bytes, name: str, bits: int = 0, draft: int = 0) -> Picture:
    """Decode the bytes of an image file; which kind it is, is seen from the bytes.

    EXIF orientation is applied. Palette, alpha and CMYK images become RGB: a colour profile other than sRGB is applied, and
    what is transparent lies on black. Grey of more than eight bits is scaled by the depth that file or data set states.

    Args:
        data: of a DICOM file, or one that Pillow reads: PNG, JPEG, TIFF, WebP, BMP, PGM, ...
        name: for errors.
        bits: of grey images with more than eight, where the data set states them; else 0.
        draft: a JPEG decoder may reduce the image while both sides stay at least so long; 0 does not let it.

    Raises:
        DataError: naming the image and the cause, if it cannot be decoded or holds several frames.
    """
    if is_dicom(data, name):
        from grandrounds.data.images.dicom import render_dicom  # with the first file of this kind

        return render_dicom(data, name, bits)
    with open_raster(data, name) as raster:
        return raster.picture(bits, draft)


def decode_image(data: bytes, name: str) -> Pixels:
    """The pixels of an image file, ``(H, W)`` grey or ``(H, W, 3)`` RGB, values 0 to 255; see :func:`decode_picture`.

    Raises:
        DataError: naming the image and the cause, if it cannot be decoded or holds several frames.
    """
    return np.array(decode_picture(data, name).image)


def pixel_digest(image: NDArray[np.uint8]) -> str:
    """A digest of an image's decoded pixels, by which two equal images are found; 32 hexadecimal digits.

    Example:
        >>> pixel_digest(np.zeros((1, 1, 3), np.uint8)) == pixel_digest(np.ones((1, 1, 3), np.uint8))
        False
    """
    return hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=16).hexdigest()


def image_digests(images: NDArray[np.uint8]) -> list[str]:
    """The digest of each image, shape ``(n, height, width, channels)``; empty for an image of one colour.

    Unreadable images are black, and empty margins repeat, so an image of one colour identifies nothing.
    """
    flat = (
        (image[0] == image[0, 0]).all() and (image == image[0, 0]).all() for image in images
    )  # most differ in a row
    return ["" if is_flat else pixel_digest(image) for is_flat, image in zip(flat, images, strict=True)]


def to_square(image: Pixels, size: int, channels: int) -> Pixels:
    """Resize both sides to ``size``, bilinear and antialiased; the aspect is not kept (FedPerl §1.3 does the same).

    ``channels`` is 1 (RGB becomes luma, ITU-R 601) or 3 (grey becomes three equal channels).

    Returns:
        Shape ``(size, size, channels)``, values 0 to 255.

    Raises:
        ValueError: if ``size`` is below one or ``channels`` neither 1 nor 3.

    Example:
        >>> to_square(np.full((2, 5), 7, np.uint8), size=1, channels=3).tolist()
        [[[7, 7, 7]]]
    """
    from PIL import Image

    return SIZINGS["exact"].square(Image.fromarray(image), size, channels)
