"""Tables and figures of the page, scores as their cells, and the templates of pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from grandrounds.evaluation.score import Score
from grandrounds.reporting.format import MISSING

if TYPE_CHECKING:
    from jinja2 import Template

FEW = "*"
"""After a value that rests on fewer than ``MIN_CASES`` cases."""


COLUMN_PIXELS = 560


class Cell(NamedTuple):
    """A cell of a table: a value, its interval in smaller print, or (``missing``) why there is no value."""

    text: str
    interval: str = ""
    missing: bool = False

    @property
    def line(self) -> str:
        """The value with its interval behind it."""
        return f"{self.text} {self.interval}" if self.interval else self.text


class PageTable(NamedTuple):
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


def page_template(name: str) -> Template:
    """A template of ``reporting/templates``; all text that it is given is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("grandrounds.reporting")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True).get_template(name)


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
    return estimate_cell(estimate).line


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
