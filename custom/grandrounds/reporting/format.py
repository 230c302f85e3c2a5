"""Numbers and lists as text, and the tables and figures of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from grandrounds.evaluation.score import Score

MISSING, FEW = "—", "*"
"""In place of a value; after one that rests on fewer than ``MIN_CASES`` cases."""
MAX_NAMES = 6
SCORE_NAMES = {
    "log_likelihood": "log-likelihood",
    "accuracy": "accuracy",
    "accuracy_one_vs_rest": "accuracy, one against the rest",
    "auc_macro": "macro AUROC",
    "auroc": "AUROC",
    "average_precision": "average precision",
    "balanced_accuracy": "balanced accuracy",
    "f1_macro": "macro F1",
    "f1_weighted": "weighted F1",
    "precision_macro": "macro precision",
    "precision_weighted": "weighted precision",
    "recall_weighted": "weighted recall",
}
CLASS_NAMES = {
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "precision": "precision",
    "f1": "F1",
    "auroc": "AUROC",
    "average_precision": "average precision",
    "balanced_accuracy": "balanced accuracy",
}
CONFIDENCE_NAMES = {
    "ece": "ECE",
    "mce": "MCE",
    "aurc": "AURC",
    "coverage_at_risk_0.1": "coverage at risk 0.1",
}
COLUMN_PIXELS = 560
PLURALS = {"class": "classes", "community": "communities"}


class Cell(NamedTuple):
    """A cell of a table: a value, its interval in smaller print, or (``missing``) why there is no value."""

    text: str
    interval: str = ""
    missing: bool = False


class Table(NamedTuple):
    """A table of the page; its first columns are text, the others numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    caption: str
    text_columns: int = 1


class PageFigure(NamedTuple):
    """A figure of the page: the picture as a ``data:`` address, its width in pixels, alternative text and caption.

    One that is wider than a column, with many small parts, has the whole width of the page.
    """

    source: str
    width: int
    alt: str
    caption: str

    @property
    def wide(self) -> bool:
        """Whether it has the whole width of the page."""
        return self.width > COLUMN_PIXELS


def format_estimate(estimate: Score | None) -> str:
    """A score with its interval.

    Example:
        >>> format_estimate(Score(0.5, 0.4, 0.6, 50)), format_estimate(Score(1.0, 0.4, 1.0, 3))
        ('0.50 [0.40, 0.60]', '1.00* [0.40, 1.00]')
        >>> format_estimate(Score(0.5, 0.4, 0.6, 50, of="3 of 5 classes"))
        '0.50 (3 of 5 classes) [0.40, 0.60]'
        >>> from grandrounds.evaluation.score import no_score
        >>> format_estimate(no_score("no image of a class"))
        'no image of a class'
        >>> format_estimate(Score(1.0, 0.9982, 1.0, 2600))
        '1.000 [0.998, 1.000]'
    """
    cell = estimate_cell(estimate)
    return f"{cell.text} {cell.interval}" if cell.interval else cell.text


def estimate_cell(estimate: Score | None) -> Cell:
    """A score and its interval as a cell of a table."""
    if estimate is None:
        return Cell(MISSING, missing=True)
    if not estimate.known:
        return Cell(estimate.reason or MISSING, missing=True)
    mark = f"{FEW if estimate.few else ''}{f' ({estimate.of})' if estimate.of else ''}"
    if math.isnan(estimate.low):
        return Cell(f"{estimate.value:.2f}{mark}")
    # An interval must not look like a point.
    same = f"{estimate.low:.2f}" == f"{estimate.high:.2f}" and estimate.low < estimate.high
    digits = 3 if same else 2
    low, high = f"{estimate.low:.{digits}f}", f"{estimate.high:.{digits}f}"
    if same and low == high:
        low, high = f"{math.floor(estimate.low * 1000) / 1000:.3f}", f"{math.ceil(estimate.high * 1000) / 1000:.3f}"
    return Cell(f"{estimate.value:.{digits}f}{mark}", f"[{low}, {high}]")


def format_number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash.

    Example:
        >>> format_number(0.123), format_number(None), format_number(float("nan"))
        ('0.12', '—', '—')
    """
    return MISSING if value is None or math.isnan(value) else f"{value:z.{digits}f}"


def format_share(value: float) -> str:
    """A share in whole percent.

    Example:
        >>> format_share(0.254)
        '25 %'
    """
    return f"{value:.0%}".replace("%", " %")


def format_p(value: float) -> str:
    """A p-value; small ones are not zero.

    Example:
        >>> format_p(0.0421), format_p(1e-9), format_p(float("nan"))
        ('0.042', '< 0.001', '—')
    """
    if math.isnan(value):
        return MISSING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def format_bytes(size: float) -> str:
    """A number of bytes.

    Example:
        >>> format_bytes(950), format_bytes(1_250_000), format_bytes(3.2e9)
        ('950 B', '1.2 MB', '3.2 GB')
    """
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= limit:
            return f"{size / limit:.1f} {unit}"
    return f"{size:.0f} B"


def pluralize(count: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> pluralize(1, "site"), pluralize(10, "case"), pluralize(2, "class")
        ('1 site', '10 cases', '2 classes')
    """
    return f"{count} {noun if count == 1 else PLURALS.get(noun, f'{noun}s')}"


def format_items(values: Mapping[str, str]) -> str:
    """Names with their values.

    Example:
        >>> format_items({"nevus": "0.8", "melanoma": "0.7"})
        'nevus 0.8, melanoma 0.7'
    """
    return ", ".join(f"{name} {value}" for name, value in values.items())


def format_list(names: Sequence[str]) -> str:
    """Names with commas; of many the first and how many more.

    Example:
        >>> format_list(["a", "b"]), format_list(list("abcdefgh"))
        ('a, b', 'a, b, c, d, e, f and 2 more')
    """
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_NAMES])} and {len(names) - MAX_NAMES} more"
