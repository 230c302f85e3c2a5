"""Windows of a CT slice as channels of an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.dicom import CHANNEL_COUNTS, Window, is_dicom, read_hounsfield
from grandrounds.data.images.files.dicom_values import (
    apply_window,
)
from grandrounds.errors import ConfigurationError, DataError


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


def windows_from(value: Any, where: str) -> tuple[Window, ...]:
    """Check windows, ``[[centre, width], ...]`` in Hounsfield units; ``where`` is their file and field.

    Raises:
        ConfigurationError: if these are not one or three pairs of numbers, or a width is below one.

    Example:
        >>> windows_from([[40, 80]], "windows")
        ((40.0, 80.0),)
    """
    if not isinstance(value, list | tuple) or len(value) not in CHANNEL_COUNTS:
        raise ConfigurationError(f"{where} must be a list of one or three windows [centre, width], got {value!r}")
    return tuple(_window(pair, where) for pair in value)


def require_channels(windows: Sequence[Window], channels: int, where: str) -> None:
    """Raise ``ConfigurationError`` unless there are no windows, or as many as the images are to have channels."""
    if windows and len(windows) != channels:
        raise ConfigurationError(
            f"{where}: images of {channels} channels (problem.channels) need as many windows, got {len(windows)}; "
            "change one of them"
        )


def _window(pair: Any, where: str) -> Window:
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(_is_number(value) for value in pair):
        raise ConfigurationError(f"{where}: a window is two numbers [centre, width], got {pair!r}")
    if pair[1] < 1:
        raise ConfigurationError(f"{where}: the width of a window must be at least 1 Hounsfield unit, got {pair[1]}")
    return float(pair[0]), float(pair[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
