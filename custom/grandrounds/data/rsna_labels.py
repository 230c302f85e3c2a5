"""The labels of the RSNA haemorrhage challenge: one row for each slice and subtype, 4.5 million in all."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from grandrounds.errors import DataError

Multi = Literal["drop", "first"]

RSNA_ICH_CLASSES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
ANY = "any"
COLUMNS = ["ID", "Label"]

SUBTYPES = len(RSNA_ICH_CLASSES)
ALL_KNOWN = 2**SUBTYPES - 1


def read_subtypes(table: Path) -> dict[str, tuple[str, ...]]:
    """Read which subtypes each slice shows.

    The table is read row by row, because as a whole it takes gigabytes. The published one has some rows twice.

    Args:
        table: ``stage_2_train.csv`` with the columns ``ID`` (``<image>_<subtype>``) and ``Label`` (0 or 1).

    Returns:
        The subtypes of every slice by its name, in the order of ``RSNA_ICH_CLASSES`` and of the slices' first rows; empty
        for slices without haemorrhage. Rows of ``any`` say nothing new.

    Raises:
        DataError: if the file is not such a table, two rows contradict each other or a slice lacks a subtype; file and
            line are named.
    """
    codes = _codes()
    found: dict[str, int] = {}
    for line, (identifier, label) in _rows(table):
        image, _, subtype = identifier.rpartition("_")
        code = codes.get((subtype, label))
        if code is None or not image:
            raise DataError(f"{table} line {line}: {_complaint(image, subtype, label)}")
        known = found.get(image, 0)
        both = known | code
        if both >> SUBTYPES & both & ALL_KNOWN:
            raise DataError(f"{table} line {line}: {identifier} is both 0 and 1; remove the wrong row")
        found[image] = both
    return _named(found, table)


def single_labels(subtypes: Mapping[str, tuple[str, ...]], multi: Multi) -> tuple[dict[str, str], dict[str, int]]:
    """One class for each slice with a haemorrhage.

    Args:
        subtypes: what each slice shows.
        multi: what becomes of a slice that shows several: ``drop`` leaves it out, ``first`` takes the first in the order
            of ``RSNA_ICH_CLASSES``, as Liu et al. (MICCAI 2021) do by taking the maximum.

    Returns:
        The classes by slice, and how many slices have no subtype and how many several.

    Example:
        >>> single_labels({"a": ("epidural",), "b": (), "c": ("epidural", "subdural")}, "drop")
        ({'a': 'epidural'}, {'without_subtype': 1, 'several_subtypes': 1})
    """
    most = 1 if multi == "drop" else SUBTYPES
    chosen = {image: names[0] for image, names in subtypes.items() if 1 <= len(names) <= most}
    counts = {
        "without_subtype": sum(not names for names in subtypes.values()),
        "several_subtypes": sum(len(names) > 1 for names in subtypes.values()),
    }
    return chosen, counts


def _codes() -> dict[tuple[str, str], int]:
    """What a row says, as bits: the lower half is set for subtypes that are there, the upper for those that are not."""
    codes = {(ANY, "0"): 0, (ANY, "1"): 0}
    for index, name in enumerate(RSNA_ICH_CLASSES):
        codes |= {(name, "1"): 1 << index, (name, "0"): 1 << index + SUBTYPES}
    return codes


def _rows(table: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        with table.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream, strict=True)
            header = [name.strip() for name in next(rows, [])]
            if header != COLUMNS:
                raise DataError(f"{table} line 1: expected the columns {', '.join(COLUMNS)}, got {', '.join(header)}")
            for row in rows:
                if len(row) != len(COLUMNS):
                    raise DataError(f"{table} line {rows.line_num} has {len(row)} values, expected {len(COLUMNS)}")
                yield rows.line_num, row
    except OSError as error:
        raise DataError(f"{table} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{table} is no CSV file in UTF-8: {error}") from error


def _complaint(image: str, subtype: str, label: str) -> str:
    if not image or subtype not in (*RSNA_ICH_CLASSES, ANY):
        expected = ", ".join((*RSNA_ICH_CLASSES, ANY))
        return f"ID must be an image, _ and one of {expected}; got {f'{image}_{subtype}' if image else subtype!r}"
    return f"Label must be 0 or 1, got {label!r}"


def _named(found: Mapping[str, int], table: Path) -> dict[str, tuple[str, ...]]:
    if not found:
        raise DataError(f"{table} has a header but no rows; download it again")
    named: dict[int, tuple[str, ...]] = {}
    for image, code in found.items():
        missing = ALL_KNOWN & ~(code | code >> SUBTYPES)
        if missing:
            first = RSNA_ICH_CLASSES[(missing & -missing).bit_length() - 1]
            raise DataError(f"{table}: image {image!r} has no row for {first}; download the table again")
        if code not in named:
            named[code] = tuple(name for index, name in enumerate(RSNA_ICH_CLASSES) if code >> index & 1)
    return {image: named[code] for image, code in found.items()}
