"""Suppression of small counts in tables whose sums are known.

A count from 1 to ``minimum - 1`` is not shown (primary suppression). A single hidden count, or hidden counts that sum to
less than the minimum, could be found by subtraction from a row's or column's sum, so the smallest other count of the row
or column is hidden as well (complementary suppression; Willenborg and de Waal, "Elements of Statistical Disclosure Control",
2001, ch. 6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_SHOWN = 10
"""The smallest count that is shown of data that were not simulated on one machine."""


def suppressed(counts: NDArray[np.int64], minimum: int) -> NDArray[np.bool_]:
    """Which counts must not be shown beside the sums of all rows and columns.

    Args:
        counts: not negative, shape ``(rows, columns)``.
        minimum: of a count that may be shown; 0 or 1 hides nothing.

    Example:
        >>> suppressed(np.array([[20, 3, 40]]), 10).tolist()
        [[True, True, False]]
    """
    hidden = (counts > 0) & (counts < minimum)
    changed = bool(hidden.any())
    while changed:
        changed = False
        for table, mask in ((counts, hidden), (counts.T, hidden.T)):
            for row, hides in zip(table, mask, strict=True):
                changed |= _complete(row, hides, minimum)
    return hidden


def shown_counts(
    counts: Mapping[str, int], minimum: int, cases: Mapping[str, int] | None = None
) -> dict[str, int | None]:
    """Counts whose sum is known; None for those that must not be shown, themselves or for the ``cases`` that they are of.

    Example:
        >>> shown_counts({"mel": 4, "nv": 120, "bcc": 15, "df": 0}, 10)
        {'mel': None, 'nv': 120, 'bcc': None, 'df': 0}
        >>> shown_counts({"mel": 30, "nv": 120, "bcc": 15}, 10, cases={"mel": 2, "nv": 80, "bcc": 12})
        {'mel': None, 'nv': 120, 'bcc': None}
    """
    tables = [np.array([list(each.values())], np.int64).reshape(1, -1) for each in (counts, cases or counts)]
    hidden = np.logical_or(*(suppressed(table, minimum) for table in tables))[0].tolist()
    return {name: None if hide else value for (name, value), hide in zip(counts.items(), hidden, strict=True)}


COUNTED = ("cases", "images", "n")


def without_small_counts(content: Any, minimum: int) -> Any:
    """Plain values without counts from 1 to ``minimum - 1``: entries named cases, images or n are None instead.

    A score of so few cases goes with them: value and interval would give their number away.

    Example:
        >>> without_small_counts({"images": 120, "mel": {"value": 0.5, "low": 0.1, "high": 0.9, "cases": 4}}, 10)["mel"]
        {'value': None, 'low': None, 'high': None, 'cases': None, 'reason': 'fewer than 10 cases'}
    """
    if isinstance(content, list):
        return [without_small_counts(value, minimum) for value in content]
    if not isinstance(content, Mapping):
        return content
    small = [key for key in COUNTED if isinstance(content.get(key), int) and 0 < content[key] < minimum]
    if "value" in content and "cases" in small:
        return {**dict.fromkeys(("value", "low", "high", "cases")), "reason": f"fewer than {minimum} cases"}
    return {key: None if key in small else without_small_counts(value, minimum) for key, value in content.items()}


def count_text(count: int | None, minimum: int = MIN_SHOWN) -> str:
    """A count as text; a hidden one as its upper limit or as withheld.

    Example:
        >>> count_text(120), count_text(None), count_text(3), count_text(3, 1)
        ('120', 'withheld', 'fewer than 10', '3')
    """
    if count is None:
        return "withheld"
    return f"fewer than {minimum}" if 0 < count < minimum else str(count)


def _complete(row: NDArray[np.int64], hidden: NDArray[np.bool_], minimum: int) -> bool:
    """Hide one more count of a row if those hidden could be found by subtraction; whether it did."""
    if not hidden.any() or (hidden.sum() > 1 and row[hidden].sum() >= minimum):
        return False
    others = np.flatnonzero(~hidden & (row > 0))
    if not len(others):
        return False
    hidden[others[row[others].argmin()]] = True
    return True
