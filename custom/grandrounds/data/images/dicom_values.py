"""From the values that a DICOM file stores to grey levels, in the order of the standard (DICOM PS3.4 N.2).

First the modality transformation, then that of the values of interest: a look-up table, a window, or a range of the values
where the file states neither. Polarity is not turned here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pydicom.dataset import Dataset


def modality_values(frame: NDArray[np.number], dataset: Dataset) -> NDArray[np.float64]:
    """Stored values in the unit of the modality: rescale slope and intercept, or a look-up table."""
    from pydicom.pixels import apply_modality_lut

    return np.asarray(apply_modality_lut(frame, group_of(dataset, "PixelValueTransformationSequence")), np.float64)


def grey_levels(frame: NDArray[np.number], dataset: Dataset, percentiles: tuple[float, float]) -> NDArray[np.float64]:
    """Grey levels that a screen shows of one frame; 0 and below is black, 1 and above white.

    Args:
        frame: stored values, shape ``(H, W)``.
        dataset: the file's attributes.
        percentiles: the range that is shown of a file that states neither a look-up table nor a window; what is padding
            does not count.

    Returns:
        Shape ``(H, W)``, before the polarity.
    """
    values = modality_values(frame, dataset)
    interest = group_of(dataset, "FrameVOILUTSequence")
    if interest.get("VOILUTSequence"):
        return _voi_table(values, interest)
    stated = _stated_window(interest)
    if stated is not None:
        return apply_window(values, *stated, str(interest.get("VOILUTFunction") or "LINEAR"))
    padding = dataset.get("PixelPaddingValue")
    real = values[frame != padding] if padding is not None else values.ravel()
    if real.size == 0:
        return np.zeros_like(values)
    low, high = np.percentile(real, percentiles)
    return np.asarray((values - low) / (high - low) if high > low else np.zeros_like(values), np.float64)


def apply_window(
    values: NDArray[np.float64], centre: float, width: float, function: str = "LINEAR"
) -> NDArray[np.float64]:
    r"""Grey levels under a window (DICOM PS3.3 C.11.2.1.2 and C.11.2.1.3).

    .. math::
        y = \frac{x - (c - 1/2)}{w - 1} + \frac{1}{2}, \qquad
        y_{exact} = \frac{x - c}{w} + \frac{1}{2}, \qquad
        y_{sigmoid} = \frac{1}{1 + e^{-4 (x - c) / w}}

    for ``LINEAR``, ``LINEAR_EXACT`` and ``SIGMOID`` with centre :math:`c` and width :math:`w > 0`; the width of LINEAR is at
    least one, where it is a threshold.

    Returns:
        Values in [0, 1], same shape; 0 is black.

    Raises:
        ValueError: if ``function`` is another word.

    Example:
        >>> apply_window(np.array([-100.0, 0.0, 39.5, 79.0, 100.0]), centre=40, width=80)
        array([0. , 0. , 0.5, 1. , 1. ])
    """
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -700, 700))), np.float64)
    if function == "LINEAR_EXACT":
        return np.clip((values - centre) / width + 0.5, 0.0, 1.0)
    if function != "LINEAR":
        raise ValueError(f"VOI LUT function must be LINEAR, LINEAR_EXACT or SIGMOID, got {function!r}")
    if width <= 1:
        return np.asarray(values > centre - 0.5, np.float64)
    return np.clip((values - (centre - 0.5)) / (width - 1) + 0.5, 0.0, 1.0)


def _voi_table(values: NDArray[np.float64], interest: Dataset) -> NDArray[np.float64]:
    item = interest.VOILUTSequence[0]
    entries, first, bits = (int(value) for value in item.LUTDescriptor)
    entries = entries or 2**16
    # The descriptor is written unsigned or signed; a first value of a signed image wraps around.
    first -= 2**16 if first >= 2**15 and values.min() < 0 else 0
    table = _table_entries(item.LUTData, entries, little_endian=interest.original_encoding[1] is not False)
    index = np.clip(np.rint(values).astype(np.int64) - first, 0, entries - 1)
    return np.asarray(table[index] / (2**bits - 1), np.float64)


def _table_entries(raw: bytes | Sequence[int], entries: int, little_endian: bool) -> NDArray[np.int64]:
    if not isinstance(raw, bytes):
        return np.atleast_1d(np.asarray(raw, np.int64))
    word = "u1" if len(raw) == entries else f"{'<' if little_endian else '>'}u2"
    return np.frombuffer(raw, word).astype(np.int64)


def _stated_window(interest: Dataset) -> tuple[float, float] | None:
    """The first window of a file, if it has one that means something."""
    from pydicom.multival import MultiValue

    pair = []
    for keyword in ("WindowCenter", "WindowWidth"):
        value = interest.get(keyword)
        value = value[0] if isinstance(value, MultiValue) and value else value
        if value is None or isinstance(value, MultiValue):
            return None
        pair.append(float(value))
    least = 1.0 if str(interest.get("VOILUTFunction") or "LINEAR") == "LINEAR" else 0.0
    return (pair[0], pair[1]) if pair[1] >= least and pair[1] > 0 else None


def group_of(dataset: Dataset, keyword: str) -> Dataset:
    """Where the first frame's attributes are: in a functional group of an enhanced image, else at the top."""
    for sequence in ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence"):
        groups = dataset.get(sequence)
        if groups and groups[0].get(keyword):
            item: Dataset = groups[0].get(keyword)[0]
            return item
    return dataset
