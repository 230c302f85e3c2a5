"""DICOM files as 8-bit grey or RGB images, as on a radiologist's screen.

CT slices may be shown under several windows, one per channel. A window of 80 Hounsfield units around brain tissue hides
what a wider one shows, so radiologists look at a slice under several. Source: S. Liu et al., "Federated semi-supervised
medical image classification via inter-client relation matching", MICCAI 2021, which classifies haemorrhages and does
not name its windows; these three are the usual ones.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.files.dicom_values import (
    grey_levels,
    group_of,
    modality_values,
    palette_colours,
    stored_values,
)
from grandrounds.data.images.files.opening import is_encoded
from grandrounds.data.images.files.picture import Picture, require_one_frame, scaled
from grandrounds.data.images.files.reading import Window
from grandrounds.errors import DataError

if TYPE_CHECKING:
    from pydicom.dataset import Dataset


from grandrounds.data.images.files.dicom_values import (
    apply_window,
)
from grandrounds.data.images.files.opening import is_dicom

Kind = TypeVar("Kind")

FALLBACK_PERCENTILES = (1.0, 99.0)
"""Range of grey values shown if the file states none: a few hot or dead pixels must not set the contrast."""


ALL_VALUES = (0.0, 100.0)
"""Range where each value counts: a few bright pixels of a mammogram are microcalcifications."""

LATERALITY = ("ImageLaterality", "Laterality")


def render_dicom(data: bytes, name: str, bits: int = 0) -> Picture:
    """Decode a DICOM file of one frame.

    The file's look-up table or first window is used. Without, images of up to eight bits are shown as they are, and others
    over the range between two percentiles, or over ``bits`` where the data set states them.

    Returns:
        Bright is high, also for MONOCHROME1. PixelPaddingValue and its range do not count for the percentiles.

    Raises:
        DataError: if this is not a DICOM file, it has no pixels, not enough of them or several frames, or its transfer
            syntax has no decoder here.
    """
    return _decoded(data, name, lambda dataset: _render(dataset, bits, name))


def read_dicom(data: bytes, name: str) -> NDArray[np.uint8]:
    """The pixels of a DICOM file, ``(H, W)`` grey or ``(H, W, 3)`` RGB, values 0 to 255; see :func:`render_dicom`."""
    return np.array(render_dicom(data, name).image)


def read_hounsfield(data: bytes, name: str) -> NDArray[np.float64]:
    """Decode a CT slice.

    Returns:
        Shape ``(H, W)``, in Hounsfield units. Windows and polarity of the file are ignored.

    Raises:
        DataError: as :func:`read_dicom`, and if the image has colours or no scale of Hounsfield units (rescale slope and
            intercept, or a modality look-up table).
    """
    return _decoded(data, name, lambda dataset: _hounsfield(dataset, name))


def read_grey(data: bytes, name: str) -> tuple[NDArray[np.float64], str]:
    """Decode a monochrome file with all its bits.

    The file's look-up table or first window is used, else the whole range of values; MONOCHROME1 is inverted.

    Returns:
        Grey levels in [0, 1], bright is high, shape ``(H, W)``; and ``L`` or ``R`` from the header, else empty.

    Raises:
        DataError: as :func:`read_dicom`, and if the image has colours.
    """
    return _decoded(data, name, lambda dataset: _grey_image(dataset, name))


def read_header(path: Path, keywords: Sequence[str]) -> dict[str, str]:
    """Texts of a file's header by their DICOM keywords, empty where there is none; the pixels are not read.

    Raises:
        DataError: if the file cannot be read or is not a DICOM file.
    """
    from pydicom import dcmread

    with _quiet:
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
        DataError: if the file cannot be read, is not a DICOM file or does not name its patient.
    """
    patient = read_header(path, ("PatientID",))["PatientID"]
    if not patient:
        raise DataError(f"{path}: its DICOM header names no patient (PatientID)")
    return patient


def _decoded(data: bytes, name: str, decode: Callable[[Dataset], Kind]) -> Kind:
    with _quiet:
        dataset = _parse(data, name)
        _require_decoder(dataset, name)
        try:
            return decode(dataset)
        except DataError as error:
            raise error if name in str(error) else DataError(f"{name}: {error}") from error
        except Exception as error:  # decoders and malformed attributes raise almost anything
            raise DataError(f"{name}: its pixels cannot be decoded ({_in_one_line(error)}); export it again") from error


class _Quiet:
    """Without warnings about identifiers: research copies have invalid UIDs, which does not affect the pixels.

    Filters of warnings belong to the process, so of several threads the first sets them and the last restores them.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._before = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", category=UserWarning, module="pydicom")

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._before.close()


_quiet = _Quiet()


def _parse(data: bytes, name: str) -> Dataset:
    import pydicom

    if not is_encoded(data):
        raise DataError(f"{name} is not a DICOM file: it has no DICM prefix and does not begin with a DICOM element")
    try:
        dataset = pydicom.dcmread(io.BytesIO(data), force=True)
        _state_syntax(dataset)
        frames = int(dataset.get("NumberOfFrames") or 1)
    except Exception as error:  # a damaged header fails in many ways
        raise DataError(f"{name}: its DICOM header is damaged ({_in_one_line(error)}); export it again") from error
    if not any(keyword in dataset for keyword in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise DataError(f"{name} has no pixel data: it is not an image or it is truncated; export it again")
    require_one_frame(frames, name)
    return dataset


def _state_syntax(dataset: Dataset) -> None:
    """Complete a missing TransferSyntaxUID of uncompressed pixels by the encoding in which the header was readable."""
    from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

    pixels = dataset.get_item("PixelData") if "PixelData" in dataset else None
    compressed = pixels is not None and getattr(pixels, "is_undefined_length", False)
    if "TransferSyntaxUID" in dataset.file_meta or compressed:
        return
    implicit, little = dataset.original_encoding
    explicit = ExplicitVRLittleEndian if little else ExplicitVRBigEndian
    dataset.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian if implicit else explicit


def _require_decoder(dataset: Dataset, name: str) -> None:
    from pydicom.pixels import get_decoder

    syntax = getattr(dataset.file_meta, "TransferSyntaxUID", None)
    if syntax is None:
        raise DataError(f"{name} has compressed pixels and no TransferSyntaxUID; export it again")
    try:
        available = get_decoder(syntax).is_available
    except NotImplementedError:
        available = False
    if not available:
        raise DataError(
            f"{name}: no decoder for its transfer syntax {syntax.name}; install 'grandrounds[dicom]' or export the "
            "images uncompressed"
        )


def _render(dataset: Dataset, bits: int, name: str) -> Picture:
    from PIL import Image

    photometric = str(dataset.PhotometricInterpretation)
    if photometric == "PALETTE COLOR":
        return Picture(Image.fromarray(palette_colours(stored_values(dataset), dataset)), ("palette",))
    if int(dataset.SamplesPerPixel) == 3:
        # The decoder has already undone the planar configuration and turned YBR into RGB.
        depth = int(dataset.BitsStored)
        colours = stored_values(dataset)
        if depth == 8:
            return Picture(Image.fromarray(np.asarray(colours, np.uint8)))
        return Picture(Image.fromarray(scaled(colours, 0, 2**depth - 1, name)), ("depth",))
    shown, rules = grey_levels(stored_values(dataset), dataset, FALLBACK_PERCENTILES, bits, name)
    levels = np.rint(np.clip(shown, 0.0, 1.0) * 255).astype(np.uint8)
    if photometric == "MONOCHROME1":
        return Picture(Image.fromarray(255 - levels), (*rules, "polarity"))
    return Picture(Image.fromarray(levels), rules)


def _hounsfield(dataset: Dataset, name: str) -> NDArray[np.float64]:
    if int(dataset.SamplesPerPixel) != 1 or str(dataset.PhotometricInterpretation) == "PALETTE COLOR":
        raise DataError(f"{name} is a colour image; windows in Hounsfield units are for CT slices")
    scale = group_of(dataset, "PixelValueTransformationSequence")
    stated = [scale.get(keyword) is not None for keyword in ("RescaleSlope", "RescaleIntercept")]
    if not scale.get("ModalityLUTSequence") and not all(stated):
        raise DataError(
            f"{name} has no rescale slope and intercept, so its values are not Hounsfield units; take the original slice"
        )
    return modality_values(stored_values(dataset), dataset)


def _grey_image(dataset: Dataset, name: str) -> tuple[NDArray[np.float64], str]:
    photometric = str(dataset.PhotometricInterpretation)
    if int(dataset.SamplesPerPixel) != 1 or photometric == "PALETTE COLOR":
        raise DataError(f"{name} is a colour image; expected grey levels")
    levels, _ = grey_levels(stored_values(dataset), dataset, ALL_VALUES, 0, name)
    shown = np.clip(levels, 0.0, 1.0)
    stated = [str(dataset.get(keyword) or "") for keyword in LATERALITY]
    laterality = next((side for side in stated if side in ("L", "R")), "")
    return 1.0 - shown if photometric == "MONOCHROME1" else shown, laterality


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


BRAIN: Window = (40.0, 80.0)
SUBDURAL: Window = (80.0, 200.0)
SOFT_TISSUE: Window = (40.0, 380.0)
HAEMORRHAGE_WINDOWS = (BRAIN, SUBDURAL, SOFT_TISSUE)


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
