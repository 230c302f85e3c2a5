"""Results as Markdown tables, in which what was not measured looks so."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

MISSING = "—"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]], digits: int = 3) -> str:
    """Lay out rows under a header.

    Args:
        header: names of the columns.
        rows: as many cells each. Floating-point numbers are rounded; NaN and None are shown as a dash; all else is
            shown as it prints, on one line.
        digits: after the point.

    Returns:
        The table, without a line break at its end.

    Raises:
        ValueError: if a row has another number of cells than the header.

    Example:
        >>> print(markdown_table(["site", "F1"], [["site-1", 0.7468], ["site-2", float("nan")]]))
        | site | F1 |
        | --- | --- |
        | site-1 | 0.747 |
        | site-2 | — |
    """
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} cells, expected {len(header)}")
    lines = [
        [_cell(name, digits) for name in header],
        ["---"] * len(header),
        *([_cell(value, digits) for value in row] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def format_interval(mean: float, low: float, high: float, digits: int = 3) -> str:
    """Write a mean with its confidence interval.

    Example:
        >>> format_interval(0.0118, -0.0018, 0.0254), format_interval(0.01, float("nan"), float("nan"))
        ('0.012 [-0.002, 0.025]', '0.010 [—, —]')
    """
    return f"{_cell(mean, digits)} [{_cell(low, digits)}, {_cell(high, digits)}]"


def _cell(value: object, digits: int) -> str:
    if value is None:
        return MISSING
    if isinstance(value, (float, np.floating)):
        # "z": a small negative difference is not shown as minus zero.
        return MISSING if math.isnan(value) else f"{float(value):z.{digits}f}"
    return " ".join(str(value).split()).replace("|", "\\|")
