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


def mean_and_spread(values: Sequence[float], digits: int = 3) -> str:
    """Write the mean over seeds with their standard deviation; of one seed the value alone, of none a dash.

    Example:
        >>> mean_and_spread([0.1, 0.2, 0.3]), mean_and_spread([0.1]), mean_and_spread([])
        ('0.200 ± 0.100', '0.100', '—')
    """
    if not len(values):
        return MISSING
    spread = f" ± {_cell(float(np.std(values, ddof=1)), digits)}" if len(values) > 1 else ""
    return _cell(float(np.mean(values)), digits) + spread


def replace_section(text: str, begin: str, end: str, content: str) -> str:
    r"""Replace what stands between two markers of a document; the markers stay.

    Raises:
        ValueError: if a marker is not there once, or they stand in the other order.

    Example:
        >>> replace_section("a <!-- x --> old <!-- y --> b", "<!-- x -->", "<!-- y -->", "new")
        'a <!-- x -->\n\nnew\n\n<!-- y --> b'
    """
    for marker in (begin, end):
        if text.count(marker) != 1:
            raise ValueError(f"expected the marker {marker!r} once, got it {text.count(marker)} times")
    before, _, rest = text.partition(begin)
    if end not in rest:
        raise ValueError(f"expected {end!r} after {begin!r}, got them in the other order")
    return f"{before}{begin}\n\n{content}\n\n{end}{rest.partition(end)[2]}"


def _cell(value: object, digits: int) -> str:
    if value is None:
        return MISSING
    if isinstance(value, (float, np.floating)):
        # "z": a small negative difference is not shown as minus zero.
        return MISSING if math.isnan(value) else f"{float(value):z.{digits}f}"
    return " ".join(str(value).split()).replace("|", "\\|")
