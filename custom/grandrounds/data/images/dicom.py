"""DICOM files as 8-bit grey or RGB images, as on a radiologist's screen.

CT slices may be shown under several windows, one per channel. A window of 80 Hounsfield units around brain tissue hides
what a wider one shows, so radiologists look at a slice under several. Source: S. Liu et al., "Federated semi-supervised
medical image classification via inter-client relation matching", MICCAI 2021, which classifies haemorrhages and does
not name its windows; these three are the usual ones.
"""

from __future__ import annotations

import io
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.files.opening import is_dicom, is_encoded
from grandrounds.data.images.files.picture import Picture, Rule, in_srgb, require_one_frame, scaled
from grandrounds.data.images.files.reading import Window
from grandrounds.errors import DataError

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

EIGHT = 8
UNCHANGED = (1.0, 0.0)
"""Slope and intercept that change nothing."""
ALL = 2**16
WORD_BITS = 16
LARGEST_VALUE = 1e12
"""Of a value in the unit of the modality; nothing that is measured is larger."""


@dataclass(frozen=True, eq=False)
class LookupTable:
    """A table.

    Attributes:
        entries: float64, shape ``(n,)``.
        first: the value whose entry is the first.
        bits: of an entry, as the descriptor states.
    """

    entries: NDArray[np.float64]
    first: int
    bits: int

    @property
    def white(self) -> int:
        """The entry that is white: that of the stated bits; many writers state 16 and store 12, 0 to 4095."""
        return 2 ** (12 if self.bits == WORD_BITS and self.entries.max() < 2**12 else self.bits) - 1

    def __call__(self, values: NDArray[np.number]) -> NDArray[np.float64]:
        """The entry of each value; values before the first and after the last have theirs."""
        index = np.rint(values).astype(np.int64) - self.first
        return np.asarray(self.entries[np.clip(index, 0, len(self.entries) - 1)])

    @classmethod
    def of_item(cls, item: Dataset, owner: Dataset, signed: bool, where: str) -> Self:
        """The table of a sequence's item.

        Args:
            item: it.
            owner: the dataset that holds the sequence.
            signed: whether the values that are looked up may be negative.
            where: the sequence, for errors.

        Raises:
            DataError: if descriptor and data contradict each other.
        """
        little_endian = owner.original_encoding[1] is not False
        return cls._made(item.get("LUTDescriptor"), item.get("LUTData"), signed, little_endian, f"{where}: LUTData")

    @classmethod
    def of_palette(cls, dataset: Dataset, colour: str, signed: bool) -> Self:
        """The table of one colour.

        Raises:
            DataError: if descriptor and data contradict each other.
        """
        keyword = f"{colour}PaletteColorLookupTable"
        little_endian = dataset.original_encoding[1] is not False
        descriptor, raw = dataset.get(f"{keyword}Descriptor"), dataset.get(f"{keyword}Data")
        return cls._made(descriptor, raw, signed, little_endian, f"{keyword}Data")

    @classmethod
    def _made(cls, descriptor: Any, raw: Any, signed: bool, little_endian: bool, where: str) -> Self:
        if not descriptor or len(descriptor) != 3 or raw is None:
            raise DataError(f"{where} or its descriptor is missing or empty; export it again, or without the table")
        count, first, bits = (int(value) for value in descriptor)
        count = count or ALL
        # The descriptor is written unsigned or signed; the first value of a signed image wraps around.
        first -= ALL if signed and first >= ALL // 2 else 0
        entries = _entries(raw, count, little_endian)
        if len(entries) < count or not 0 < bits <= WORD_BITS:
            raise DataError(
                f"{where} has {len(entries)} entries, its descriptor states {count} of {bits} bits; export it again, or "
                "without the table"
            )
        return cls(entries[:count].astype(np.float64), first, bits)


def _entries(raw: Any, count: int, little_endian: bool) -> NDArray[np.integer]:
    order = "<" if little_endian else ">"
    if not isinstance(raw, bytes):
        words = np.atleast_1d(np.asarray(raw, np.int64))
        packed = len(words) < count <= 2 * len(words)
        return np.frombuffer(words.astype("<u2").tobytes(), np.uint8) if packed else words
    return np.frombuffer(raw, np.uint8) if len(raw) < 2 * count else np.frombuffer(raw[: 2 * count], f"{order}u2")


def stored_values(dataset: Dataset) -> NDArray[np.number]:
    """The stored values of the first frame, where HighBit says they are; ``(H, W)``, or ``(H, W, 3)`` as RGB.

    Raises:
        DataError: if HighBit contradicts BitsStored and BitsAllocated.
    """
    from pydicom.pixels import pixel_array

    if not _is_shifted(dataset):
        frame = np.asarray(pixel_array(dataset, index=0))
        return _finite(frame) if frame.dtype.kind == "f" else frame
    # The decoder takes the low bits whatever HighBit is: it is asked for all of them.
    stored, high, allocated = (int(dataset[keyword].value) for keyword in ("BitsStored", "HighBit", "BitsAllocated"))
    signed = int(dataset.PixelRepresentation)
    if not stored <= high + 1 <= allocated:
        raise DataError(
            f"HighBit is {high}, which {stored} bits (BitsStored) of {allocated} (BitsAllocated) cannot have; export it "
            "again"
        )
    dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = allocated, allocated - 1, 0
    words = np.asarray(pixel_array(dataset, index=0)).astype(np.int64)
    dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = stored, stored - 1, signed
    values = (words >> (high + 1 - stored)) & (2**stored - 1)
    sign = 2 ** (stored - 1) * signed
    return np.asarray((values ^ sign) - sign)


def _finite(values: NDArray[np.number]) -> NDArray[np.number]:
    """Values with the lowest and highest real ones in place of what is not finite, as where nothing was measured."""
    real = values[np.isfinite(values)]
    if real.size == 0:
        raise DataError("all of its pixels are NaN or infinite; export it again")
    return np.nan_to_num(values, nan=real.min(), posinf=real.max(), neginf=real.min())


def _is_shifted(dataset: Dataset) -> bool:
    from pydicom.uid import RLELossless

    syntax = dataset.file_meta.TransferSyntaxUID
    as_words = not syntax.is_encapsulated or syntax == RLELossless
    grey = int(dataset.SamplesPerPixel) == 1 and "BitsStored" in dataset
    high = dataset.get("HighBit")
    return as_words and grey and high is not None and int(high) != int(dataset.BitsStored) - 1


def modality_values(frame: NDArray[np.number], dataset: Dataset) -> NDArray[np.float64]:
    """Stored values in the unit of the modality: rescale slope and intercept, which may be empty, or a look-up table."""
    scale = group_of(dataset, "PixelValueTransformationSequence")
    if scale.get("ModalityLUTSequence"):
        table = LookupTable.of_item(scale.ModalityLUTSequence[0], scale, _is_signed(dataset), "ModalityLUTSequence")
        return table(frame)
    slope, intercept = _rescaling(scale)
    return frame.astype(np.float64) * slope + intercept


def palette_colours(frame: NDArray[np.number], dataset: Dataset) -> NDArray[np.uint8]:
    """Colours of stored values, shape ``(H, W, 3)``; tables whose entries are all below 256 hold eight bits.

    The standard wants 16-bit entries to use their whole range; many writers say 16 bits and store 0 to 255.
    """
    if "RedPaletteColorLookupTableData" in dataset:
        tables = [LookupTable.of_palette(dataset, colour, _is_signed(dataset)) for colour in ("Red", "Green", "Blue")]
        highest = max(float(table.entries.max()) for table in tables)
        colours: NDArray[np.number] = np.stack([table(frame) for table in tables], axis=-1)
    else:
        colours, highest = _segmented_colours(frame, dataset)
    return scaled(colours, 0, 2**EIGHT - 1 if highest < 2**EIGHT else 2 ** (2 * EIGHT) - 1, "palette")


def _segmented_colours(frame: NDArray[np.number], dataset: Dataset) -> tuple[NDArray[np.number], float]:
    from pydicom.pixels import apply_color_lut

    entries, first, _ = dataset.RedPaletteColorLookupTableDescriptor
    table = apply_color_lut(np.arange(first, first + (entries or 2**16)), dataset)[..., :3]
    return np.asarray(apply_color_lut(frame, dataset))[..., :3], float(table.max())


def grey_levels(
    frame: NDArray[np.number], dataset: Dataset, percentiles: tuple[float, float], bits: int, name: str
) -> tuple[NDArray[np.float64], tuple[Rule, ...]]:
    """Grey levels that a screen shows of one frame; 0 and below is black, 1 and above white.

    Args:
        frame: stored values, shape ``(H, W)``.
        dataset: the file's attributes.
        percentiles: the range that is shown of a file of more than eight bits that states neither a look-up table nor a
            window; what is padding does not count.
        bits: of such files, where the data set states them; else 0.
        name: of the image, for errors.

    Returns:
        Shape ``(H, W)``, before the polarity; and the rules that were applied.
    """
    values = modality_values(frame, dataset)
    scale = group_of(dataset, "PixelValueTransformationSequence")
    before: tuple[Rule, ...] = ("modality LUT",) if scale.get("ModalityLUTSequence") else ()
    interest = group_of(dataset, "FrameVOILUTSequence")
    if interest.get("VOILUTSequence"):
        table = LookupTable.of_item(interest.VOILUTSequence[0], interest, values.min() < 0, "VOILUTSequence")
        return table(values) / table.white, (*before, "VOI LUT")
    stated = _stated_window(interest)
    if stated is not None:
        return apply_window(values, *stated, _window_function(interest)), (*before, "window")
    depth = bits or min(int(dataset.get("BitsStored") or EIGHT + 1), EIGHT + 1) % (EIGHT + 1)
    if depth and not before and not _is_signed(dataset) and _rescaling(scale) == UNCHANGED:
        return scaled(frame, 0, 2**depth - 1, name) / (2**EIGHT - 1), ("depth",) if depth != EIGHT else ()
    padding = _padding(frame, dataset)
    real = values[~padding]
    rules: tuple[Rule, ...] = (*before, "stretch", "padding") if padding.any() else (*before, "stretch")
    if real.size == 0:
        return np.zeros_like(values), rules
    low, high = np.percentile(real, percentiles)
    return np.asarray((values - low) / (high - low) if high > low else np.zeros_like(values), np.float64), rules


def _padding(frame: NDArray[np.number], dataset: Dataset) -> NDArray[np.bool_]:
    """Which stored values are no image: PixelPaddingValue, or those from it to PixelPaddingRangeLimit."""
    value = dataset.get("PixelPaddingValue")
    if value is None:
        return np.zeros(frame.shape, np.bool_)
    limit = dataset.get("PixelPaddingRangeLimit")
    # The attributes may be written without the sign of the pixels.
    wraps = 2**16 if _is_signed(dataset) else 0
    ends = [int(end) - (wraps if int(end) >= 2**15 else 0) for end in (value, value if limit is None else limit)]
    return (frame >= min(ends)) & (frame <= max(ends))


def _rescaling(scale: Dataset) -> tuple[float, float]:
    slope, intercept = _number(scale, "RescaleSlope", UNCHANGED[0]), _number(scale, "RescaleIntercept", UNCHANGED[1])
    if not abs(slope) <= LARGEST_VALUE or not abs(intercept) <= LARGEST_VALUE or slope == 0:
        raise ValueError(
            f"RescaleSlope and RescaleIntercept must be at most {LARGEST_VALUE:g}, and the slope not 0, got {slope:g} and "
            f"{intercept:g}"
        )
    return slope, intercept


def _number(dataset: Dataset, keyword: str, if_empty: Kind) -> float | Kind:
    """The first value of an attribute; decimal commas, which DICOM does not know, are read."""
    value = dataset.get(keyword)
    first = str("" if value is None else value if isinstance(value, str | float | int) else next(iter(value), ""))
    try:
        return float(first.replace(",", ".")) if first.strip() else if_empty
    except ValueError:
        raise ValueError(f"{keyword} is {first!r}, which is no number") from None


def _is_signed(dataset: Dataset) -> bool:
    return int(dataset.get("PixelRepresentation") or 0) == 1


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
        raise ValueError(f"VOILUTFunction must be LINEAR, LINEAR_EXACT or SIGMOID, got {function!r}")
    if width <= 1:
        return np.asarray(values > centre - 0.5, np.float64)
    return np.clip((values - (centre - 0.5)) / (width - 1) + 0.5, 0.0, 1.0)


def _stated_window(interest: Dataset) -> tuple[float, float] | None:
    """The first window of a file, if it has one that means something."""
    centre, width = _number(interest, "WindowCenter", None), _number(interest, "WindowWidth", None)
    if centre is None or width is None:
        return None
    least = 1.0 if _window_function(interest) == "LINEAR" else 0.0
    if not abs(centre) <= LARGEST_VALUE or not abs(width) <= LARGEST_VALUE:
        raise ValueError(
            f"WindowCenter and WindowWidth must be at most {LARGEST_VALUE:g}, got {centre:g} and {width:g}"
        )
    return (centre, width) if width >= least and width > 0 else None


def _window_function(interest: Dataset) -> str:
    return str(interest.get("VOILUTFunction") or "LINEAR").strip().upper()


def group_of(dataset: Dataset, keyword: str) -> Dataset:
    """Where the first frame's attributes are: in a functional group of an enhanced image, else at the top."""
    for sequence in ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence"):
        groups = dataset.get(sequence)
        if groups and groups[0].get(keyword):
            return groups[0].get(keyword)[0]
    return dataset


Kind = TypeVar("Kind")

FALLBACK_PERCENTILES = (1.0, 99.0)
"""Range of grey values shown if the file states none: a few hot or dead pixels must not set the contrast."""


ALL_VALUES = (0.0, 100.0)
"""Range where each value counts: a few bright pixels of a mammogram are microcalcifications."""

LATERALITY = ("ImageLaterality", "Laterality")
UNREAD_COLOURS = ("YBR_PARTIAL", "HSV", "ARGB", "CMYK")
"""How photometric interpretations begin that decoders leave as they are."""
MAX_INFLATED = 2**27
"""Bytes of a deflated file's attributes and pixels; the largest mammograms have 40 MiB."""


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


def read_header(opened: Callable[[str], IO[bytes]], name: str, keywords: Sequence[str]) -> dict[str, str]:
    """Texts of a file's header by their DICOM keywords, empty where there is none; the pixels are not read.

    Args:
        opened: opens a file by its name.
        name: of the file.
        keywords: of the texts.

    Raises:
        DataError: if the file cannot be read.
    """
    from pydicom import dcmread

    with _quiet:
        try:
            with opened(name) as stream:
                _require_small(stream, name)
                header = dcmread(stream, stop_before_pixels=True, specific_tags=list(keywords), force=True)
            return {keyword: str(header.get(keyword) or "").strip() for keyword in keywords}
        except DataError:
            raise
        except OSError as error:
            raise DataError(f"{name}: {error.strerror or error}") from error
        except Exception as error:  # a damaged header fails in many ways
            raise DataError(f"{name}: its DICOM header cannot be read ({_in_one_line(error)})") from error


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
        stream = io.BytesIO(data)
        _require_small(stream, name)
        dataset = pydicom.dcmread(stream, force=True)
        _state_syntax(dataset)
        if "PhotometricInterpretation" in dataset:
            dataset.PhotometricInterpretation = str(dataset.PhotometricInterpretation).strip().upper()
        frames = int(dataset.get("NumberOfFrames") or 1)
    except DataError:
        raise
    except Exception as error:  # a damaged header fails in many ways
        raise DataError(f"{name}: its DICOM header is damaged ({_in_one_line(error)}); export it again") from error
    if not any(dataset.get(keyword) for keyword in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise DataError(f"{name} has no pixel data: it is not an image or it is truncated; export it again")
    require_one_frame(frames, name)
    return dataset


def _require_small(stream: IO[bytes], name: str) -> None:
    """Inflate a deflated file in vain, up to its limit: pydicom would do so without any. The stream is at its start then."""
    from pydicom.filereader import _read_file_meta_info, read_preamble
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    read_preamble(stream, force=True)
    if _read_file_meta_info(stream).get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        inflater.decompress(stream.read(), MAX_INFLATED)
        if inflater.unconsumed_tail:
            raise DataError(f"{name} expands to more than {MAX_INFLATED >> 20} MiB; export it without deflation")
    stream.seek(0)


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
    available = False
    with suppress(NotImplementedError):
        available = get_decoder(syntax).is_available
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
    if int(dataset.SamplesPerPixel) != 1:
        if photometric.startswith(UNREAD_COLOURS):
            raise DataError(f"{name} has its colours as {photometric}, which are not read; export it as RGB")
        # The decoder has already undone the planar configuration and turned YBR into RGB.
        depth = int(dataset.BitsStored)
        colours = stored_values(dataset)
        stored = Image.fromarray(
            np.asarray(colours, np.uint8) if depth == 8 else scaled(colours, 0, 2**depth - 1, name)
        )
        shown = in_srgb(stored, dataset.get("ICCProfile"))
        rules: tuple[Rule, ...] = () if depth == 8 else ("depth",)
        return Picture(shown, (*rules, "profile") if shown is not stored else rules)
    levels_shown, rules = grey_levels(stored_values(dataset), dataset, FALLBACK_PERCENTILES, bits, name)
    levels = np.rint(np.clip(levels_shown, 0.0, 1.0) * 255).astype(np.uint8)
    if photometric == "MONOCHROME1":
        return Picture(Image.fromarray(255 - levels), (*rules, "polarity"))
    return Picture(Image.fromarray(levels), rules)


def _hounsfield(dataset: Dataset, name: str) -> NDArray[np.float64]:
    if int(dataset.SamplesPerPixel) != 1 or str(dataset.PhotometricInterpretation) == "PALETTE COLOR":
        raise DataError(f"{name} is a colour image; windows in Hounsfield units are for CT slices")
    scale = group_of(dataset, "PixelValueTransformationSequence")
    stated = [_number(scale, keyword, None) is not None for keyword in ("RescaleSlope", "RescaleIntercept")]
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
    if isinstance(error, AttributeError) and error.name:
        return f"{error.name} is missing"
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
