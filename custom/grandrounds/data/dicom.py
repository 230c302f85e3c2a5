"""From a DICOM file to 8-bit grey or RGB: what a radiologist's screen would show.

The order of the steps is that of the standard (DICOM PS3.4 N.2): modality transformation (rescale slope and intercept,
or a look-up table), then the values-of-interest transformation (window or look-up table), then the polarity.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from grandrounds.errors import DataError

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

Kind = TypeVar("Kind")
Window = tuple[float, float]

FALLBACK_PERCENTILES = (1.0, 99.0)
"""Range of grey values shown when a file says nothing about it: a few hot or dead pixels must not set the contrast."""


ALL_VALUES = (0.0, 100.0)
"""Range where each value counts: a few bright pixels of a mammogram are microcalcifications."""

LATERALITY = ("ImageLaterality", "Laterality")


@dataclass(frozen=True, eq=False)
class GreyImage:
    """A monochrome image before it becomes 8 bits.

    Attributes:
        levels: grey levels in [0, 1], bright is high, shape ``(H, W)``.
        laterality: ``L`` or ``R`` as the header says, else empty.
    """

    levels: NDArray[np.float64]
    laterality: str


def read_dicom(data: bytes, name: str, window: Window | None = None) -> NDArray[np.uint8]:
    """Decode the first frame of a DICOM file.

    Args:
        data: the file's bytes.
        name: how errors call it.
        window: centre and width in modality units (Hounsfield units in CT); it wins over what the file says. Without
            one, the file's look-up table or first window is used, else the range between two percentiles.

    Returns:
        Shape ``(H, W)`` for monochrome, ``(H, W, 3)`` RGB for colour images, values 0 to 255; bright is high, also
        for MONOCHROME1. PixelPaddingValue does not count for the percentiles.

    Raises:
        DataError: if this is no DICOM file, it has no pixels or not enough of them, or its transfer syntax has no
            decoder here.
        ValueError: if ``window`` has a width below one.
    """
    if window is not None and not window[1] >= 1:
        raise ValueError(f"window width must be at least 1, got {window[1]}")
    return _decoded(data, name, lambda dataset: _render(dataset, window))


def read_hounsfield(data: bytes, name: str) -> NDArray[np.float64]:
    """Decode the first frame of a CT slice.

    Args:
        data: the file's bytes.
        name: how errors call it.

    Returns:
        Shape ``(H, W)``, in Hounsfield units. What the file says about windows and polarity does not count.

    Raises:
        DataError: as :func:`read_dicom`, and if the image has colours or no scale of Hounsfield units (rescale slope and
            intercept, or a modality look-up table).
    """
    return _decoded(data, name, lambda dataset: _hounsfield(dataset, name))


def read_grey(data: bytes, name: str) -> GreyImage:
    """Decode the first frame of a monochrome file with all its bits.

    The file's look-up table or first window is used, else the whole range of values; MONOCHROME1 is inverted.

    Args:
        data: the file's bytes.
        name: how errors call it.

    Raises:
        DataError: as :func:`read_dicom`, and if the image has colours.
    """
    return _decoded(data, name, lambda dataset: _grey_image(dataset, name))


def read_header(path: Path, keywords: Sequence[str]) -> dict[str, str]:
    """Texts of a file's header by their DICOM keywords, empty where there is none; the pixels are not read.

    Raises:
        DataError: if the file cannot be read or is no DICOM file.
    """
    from pydicom import dcmread

    with _quiet():
        try:
            header = dcmread(path, stop_before_pixels=True, specific_tags=list(keywords))
            return {keyword: str(header.get(keyword) or "").strip() for keyword in keywords}
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from error
        except Exception as error:  # a damaged header fails in many ways
            raise DataError(f"{path}: its DICOM header cannot be read ({_in_one_line(error)})") from error


def read_patient(path: Path) -> str:
    """The patient's identifier in a file's header; the pixels are not read.

    Raises:
        DataError: if the file cannot be read, is no DICOM file or does not name its patient.
    """
    patient = read_header(path, ("PatientID",))["PatientID"]
    if not patient:
        raise DataError(f"{path}: its DICOM header names no patient (PatientID)")
    return patient


def _decoded(data: bytes, name: str, decode: Callable[[Dataset], Kind]) -> Kind:
    with _quiet():
        dataset = _parse(data, name)
        _require_decoder(dataset, name)
        try:
            return decode(dataset)
        except DataError:
            raise
        except Exception as error:  # decoders and malformed attributes raise almost anything
            raise DataError(f"{name}: its pixels cannot be decoded ({_in_one_line(error)}); export it again") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings about identifiers: those of research copies are no valid UIDs, which says nothing about pixels."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="pydicom")
        yield


def _parse(data: bytes, name: str) -> Dataset:
    import pydicom
    from pydicom.errors import InvalidDicomError

    try:
        dataset = pydicom.dcmread(io.BytesIO(data))
    except InvalidDicomError as error:
        raise DataError(f"{name} is not a DICOM file: it has no DICM prefix") from error
    except Exception as error:  # a damaged header fails in many ways
        raise DataError(f"{name}: its DICOM header is damaged ({_in_one_line(error)}); export it again") from error
    if not any(keyword in dataset for keyword in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise DataError(f"{name} has no pixel data: it is no image, or it was cut off; export it again")
    return dataset


def _require_decoder(dataset: Dataset, name: str) -> None:
    from pydicom.pixels import get_decoder

    syntax = getattr(dataset.file_meta, "TransferSyntaxUID", None)
    if syntax is None:
        raise DataError(f"{name} does not name its transfer syntax; export it again")
    try:
        available = get_decoder(syntax).is_available
    except NotImplementedError:
        available = False
    if not available:
        raise DataError(
            f"{name}: no decoder for its transfer syntax {syntax.name}; install 'grandrounds[dicom]' or export the "
            "images uncompressed"
        )


def _render(dataset: Dataset, window: Window | None) -> NDArray[np.uint8]:
    from pydicom.pixels import apply_color_lut, pixel_array

    frame = pixel_array(dataset, index=0)
    photometric = str(dataset.PhotometricInterpretation)
    if photometric == "PALETTE COLOR":
        colours = np.asarray(apply_color_lut(frame, dataset))[..., :3]
        return _full_scale(colours, 8 * colours.itemsize)
    if int(dataset.SamplesPerPixel) == 3:
        # The decoder has already undone the planar configuration and turned YBR into RGB.
        return _full_scale(frame, int(dataset.BitsStored))
    shown = _grey_levels(frame, dataset, window)
    levels = np.rint(np.clip(shown, 0.0, 1.0) * 255).astype(np.uint8)
    return np.asarray(255 - levels if photometric == "MONOCHROME1" else levels, dtype=np.uint8)


def _full_scale(values: NDArray[np.integer], bits: int) -> NDArray[np.uint8]:
    if bits == 8:
        return np.asarray(values, np.uint8)
    return np.asarray(np.rint(np.clip(values / (2**bits - 1), 0.0, 1.0) * 255), np.uint8)


def _hounsfield(dataset: Dataset, name: str) -> NDArray[np.float64]:
    from pydicom.pixels import pixel_array

    if int(dataset.SamplesPerPixel) != 1 or str(dataset.PhotometricInterpretation) == "PALETTE COLOR":
        raise DataError(f"{name} is a colour image; windows in Hounsfield units are for CT slices")
    scale = _group(dataset, "PixelValueTransformationSequence")
    if not scale.get("ModalityLUTSequence") and not ("RescaleSlope" in scale and "RescaleIntercept" in scale):
        raise DataError(
            f"{name} has no rescale slope and intercept, so its values are no Hounsfield units; take the original slice"
        )
    return _modality_values(pixel_array(dataset, index=0), dataset)


def _grey_image(dataset: Dataset, name: str) -> GreyImage:
    from pydicom.pixels import pixel_array

    photometric = str(dataset.PhotometricInterpretation)
    if int(dataset.SamplesPerPixel) != 1 or photometric == "PALETTE COLOR":
        raise DataError(f"{name} is a colour image; expected grey levels")
    shown = np.clip(_grey_levels(pixel_array(dataset, index=0), dataset, None, ALL_VALUES), 0.0, 1.0)
    stated = [str(dataset.get(keyword) or "") for keyword in LATERALITY]
    laterality = next((side for side in stated if side in ("L", "R")), "")
    return GreyImage(1.0 - shown if photometric == "MONOCHROME1" else shown, laterality)


def _modality_values(frame: NDArray[np.number], dataset: Dataset) -> NDArray[np.float64]:
    from pydicom.pixels import apply_modality_lut

    return np.asarray(apply_modality_lut(frame, _group(dataset, "PixelValueTransformationSequence")), np.float64)


def _grey_levels(
    frame: NDArray[np.number],
    dataset: Dataset,
    window: Window | None,
    percentiles: tuple[float, float] = FALLBACK_PERCENTILES,
) -> NDArray[np.float64]:
    """Stored values to grey levels in [0, 1] (before clipping); ``percentiles`` are for files that say no window."""
    values = _modality_values(frame, dataset)
    if window is not None:
        return apply_window(values, *window)
    interest = _group(dataset, "FrameVOILUTSequence")
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

    Args:
        values: modality values, any shape.
        centre: :math:`c`, in the unit of ``values``.
        width: :math:`w`, above zero; at least one for LINEAR, where a width of one is a threshold.
        function: ``LINEAR``, ``LINEAR_EXACT`` or ``SIGMOID``.

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


def _stated_window(interest: Dataset) -> Window | None:
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


def _group(dataset: Dataset, keyword: str) -> Dataset:
    """Where the first frame's attributes are: in a functional group of an enhanced image, else at the top."""
    for sequence in ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence"):
        groups = dataset.get(sequence)
        if groups and groups[0].get(keyword):
            item: Dataset = groups[0].get(keyword)[0]
            return item
    return dataset


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
