"""The grey levels of a mammogram file with all the bits it has."""

from __future__ import annotations

import io

import numpy as np

from grandrounds.data.decoding import DICOM_SUFFIXES
from grandrounds.data.dicom import read_grey
from grandrounds.data.mammo_mask import Levels
from grandrounds.data.mammo_view import Laterality
from grandrounds.errors import DataError


def read_mammogram(data: bytes, name: str) -> tuple[Levels, Laterality]:
    """Decode a DICOM, PNG, PGM, TIFF or JPEG file; which one is seen from the bytes.

    DICOM files are shown as they say themselves (look-up table or window, MONOCHROME1 inverted). Of other files, colours
    become luma (ITU-R 601).

    Args:
        data: the file's bytes.
        name: how errors call it.

    Returns:
        Grey levels, bright tissue, shape ``(H, W)``, in [0, 1] for DICOM files and in the file's own unit for others; and
        which breast a DICOM file says it is.

    Raises:
        DataError: naming the image and the cause, if it cannot be decoded.
    """
    if data[128:132] == b"DICM" or name.lower().endswith(DICOM_SUFFIXES):
        image = read_grey(data, name)
        return image.levels.astype(np.float32), "L" if image.laterality == "L" else "R" if image.laterality else ""
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(io.BytesIO(data))
        # PIL opens 16-bit PNG and PGM files with 16 or 32 bits per pixel, and all other grey files with 8.
        wide = picture.mode.startswith("I") or picture.mode == "F"
        return np.array(picture if wide else picture.convert("L"), np.float32), ""
    except UnidentifiedImageError:
        raise DataError(f"{name} is no image that can be read ({len(data)} bytes); expected DICOM, PNG, ...") from None
    except Exception as error:  # decoders raise almost anything on damaged bytes
        raise DataError(f"{name} cannot be decoded: {error}") from error
