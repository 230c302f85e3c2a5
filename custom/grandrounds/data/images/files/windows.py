"""Windows of a CT slice as channels of an image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.dicom import read_hounsfield
from grandrounds.data.images.files.dicom_values import (
    apply_window,
)
from grandrounds.data.images.files.opening import is_dicom
from grandrounds.data.images.files.reading import Window
from grandrounds.errors import DataError


def read_windows(data: bytes, name: str, windows: Sequence[Window]) -> NDArray[np.uint8]:
    """Decode a CT slice under windows, each with centre and width in Hounsfield units.

    Returns:
        Shape ``(H, W)`` for one window, ``(H, W, windows)`` for several, values 0 to 255; dense tissue is bright.

    Raises:
        DataError: if this is not a DICOM file with Hounsfield units, or it cannot be decoded.
    """
    if not is_dicom(data, name):
        raise DataError(
            f"{name} is not a DICOM file, which windows are for; take windows out of the data set's description"
        )
    channels = window_channels(read_hounsfield(data, name), windows)
    return channels[..., 0] if len(windows) == 1 else channels


def window_channels(hounsfield: NDArray[np.float64], windows: Sequence[Window]) -> NDArray[np.uint8]:
    r"""Grey levels of a slice under each window (DICOM PS3.3 C.11.2.1.2, LINEAR).

    .. math::
        y = \mathrm{round}\left(255\,\mathrm{clip}_{[0, 1]}\left(\frac{x - (c - 1/2)}{w - 1} + \frac{1}{2}\right)\right)

    Values in Hounsfield units, shape ``(H, W)``, become levels from 0 to 255, shape ``(H, W, windows)``; :math:`c` and
    :math:`w` are centre and width of a window.

    Example:
        >>> window_channels(np.array([[-1000.0, 39.5, 3000.0]]), [(40, 80), (80, 200)]).tolist()
        [[[0, 0], [128, 76], [255, 255]]]
    """
    shown = [apply_window(hounsfield, centre, width) for centre, width in windows]
    return np.rint(np.stack(shown, axis=-1) * 255).astype(np.uint8)
