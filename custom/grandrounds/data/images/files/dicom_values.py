"""From the values that a DICOM file stores to grey levels, in the order of the standard (DICOM PS3.4 N.2).

First the modality transformation, then that of the values of interest: a look-up table, a window, or a range of the values
where the file states neither. Polarity is not turned here.

Look-up tables are of a modality, of values of interest, or of palettes (DICOM PS3.3 C.11, C.7.6.3.1.5). A descriptor has the
number of entries (0 is 65536), the stored value of the first one, and the bits of an entry. Entries are words, as bytes or
numbers; those of eight bits may also be packed two in a word.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.files.picture import Rule, scaled
from grandrounds.errors import DataError

if TYPE_CHECKING:
    from pydicom.dataset import Dataset


from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pydicom.dataset import Dataset


EIGHT = 8
UNCHANGED = (1.0, 0.0)
"""Slope and intercept that change nothing."""
ALL = 2**16
WORD_BITS = 16


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
        return np.asarray(pixel_array(dataset, index=0))
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
        return table(values) / (2**table.bits - 1), (*before, "VOI LUT")
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
    slope, intercept = (
        usual if (value := scale.get(keyword)) is None else float(value)
        for keyword, usual in zip(("RescaleSlope", "RescaleIntercept"), UNCHANGED, strict=True)
    )
    if not math.isfinite(slope * intercept) or slope == 0:
        raise ValueError(
            f"RescaleSlope and RescaleIntercept must be finite, and the slope not 0, got {slope:g} and {intercept:g}"
        )
    return slope, intercept


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
    from pydicom.multival import MultiValue

    pair = []
    for keyword in ("WindowCenter", "WindowWidth"):
        value = interest.get(keyword)
        value = value[0] if isinstance(value, MultiValue) and value else value
        if value is None or isinstance(value, MultiValue):
            return None
        pair.append(float(value))
    least = 1.0 if _window_function(interest) == "LINEAR" else 0.0
    means_something = all(map(math.isfinite, pair)) and pair[1] >= least and pair[1] > 0
    return (pair[0], pair[1]) if means_something else None


def _window_function(interest: Dataset) -> str:
    return str(interest.get("VOILUTFunction") or "LINEAR").strip().upper()


def group_of(dataset: Dataset, keyword: str) -> Dataset:
    """Where the first frame's attributes are: in a functional group of an enhanced image, else at the top."""
    for sequence in ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence"):
        groups = dataset.get(sequence)
        if groups and groups[0].get(keyword):
            item: Dataset = groups[0].get(keyword)[0]
            return item
    return dataset
