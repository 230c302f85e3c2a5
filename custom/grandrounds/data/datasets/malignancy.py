"""Malignant or benign: one question for mammograms and for skin lesions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from grandrounds.data.manifest import Record

BENIGN: Final = "benign"
MALIGNANT: Final = "malignant"
NORMAL: Final = "normal"

MALIGNANCY_CLASSES = (BENIGN, MALIGNANT)

# Actinic keratoses and Bowen's disease (akiec) count as malignant: they are carcinomas in situ or their forerunners.
HAM10000_MALIGNANCY: Mapping[str, str] = MappingProxyType(
    {
        "akiec": MALIGNANT,
        "bcc": MALIGNANT,
        "bkl": BENIGN,
        "df": BENIGN,
        "mel": MALIGNANT,
        "nv": BENIGN,
        "vasc": BENIGN,
    }
)


def by_malignancy(records: Iterable[Record]) -> tuple[Record, ...]:
    """The records of HAM10000 with the classes of ``MALIGNANCY_CLASSES``.

    Example:
        >>> [record.label for record in by_malignancy([Record("a", "mel"), Record("b", "nv")])]
        ['malignant', 'benign']
    """
    return tuple(replace(record, label=HAM10000_MALIGNANCY[record.label]) for record in records)
