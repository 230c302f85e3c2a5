"""Look-up tables of DICOM files: of a modality, of values of interest, and of palettes (DICOM PS3.3 C.11, C.7.6.3.1.5).

A descriptor has the number of entries (0 is 65536), the stored value of the first one, and the bits of an entry. Entries
are words, as bytes or numbers; those of eight bits may also be packed two in a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from grandrounds.errors import DataError

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

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
