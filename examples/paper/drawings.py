"""Figures at the widths of a journal's column and page, as PDF and SVG."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from grandrounds.plotting import Drawing
from grandrounds.reporting.figures.runs import comparison_drawings, run_drawings
from grandrounds.reporting.model import Report
from grandrounds.reporting.page import SVG_OPTIONS, svg_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN_MM, PAGE_MM = 85, 174
INCH_MM = 25.4
TEXT = 0.82
"""Of the print of a report: about 8 and 6.5 points, which journals ask for."""
LEAST_HEIGHT = 0.8
"""A narrow figure keeps so much of its height."""


def paper_drawings(report: Report) -> list[Drawing]:
    """The figures of all methods together, and of the first run of each."""
    firsts = [method.runs[0] for method in report.methods.values()]
    return [*comparison_drawings(report), *(drawing for first in firsts for drawing in run_drawings(report, first))]


def at_journal_widths(drawing: Drawing) -> Iterator[tuple[str, bytes]]:
    """A figure as PDF and SVG for one column and for the whole page: paths and contents."""
    figure = drawing.figure
    natural = tuple(float(size) for size in figure.get_size_inches())
    _reduce_text(figure)
    margin = TEXT
    for width in (COLUMN_MM, PAGE_MM):
        across = width / INCH_MM
        _resize(figure, across, natural[1] * min(max(across / natural[0], LEAST_HEIGHT), 1.0), margin)
        margin = 1.0
        yield f"{width}mm/{drawing.name}.svg", svg_of(drawing)
        yield f"{width}mm/{drawing.name}.pdf", _pdf_of(figure)


def _resize(figure: Figure, width: float, height: float, margin: float) -> None:
    """Give a figure another size; the margins of a single plot keep their size, times ``margin``, as its text does."""
    old_width, old_height = figure.get_size_inches()
    figure.set_size_inches(width, height)
    if figure.get_layout_engine() is not None or len(figure.axes) != 1:
        return
    box = figure.axes[0].get_position()
    left, right = box.x0 * old_width * margin / width, (1 - box.x1) * old_width * margin / width
    low, high = box.y0 * old_height * margin / height, (1 - box.y1) * old_height * margin / height
    figure.axes[0].set_position((left, low, max(1 - left - right, 0.2), max(1 - low - high, 0.2)))


def _reduce_text(figure: Figure) -> None:
    """Make all text smaller, that of ticks which are drawn later, too."""
    from matplotlib.text import Text

    ticks = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [*axis.get_ticklabels(), *axis.get_ticklabels(minor=True)]
            ticks |= {id(label) for label in labels}
            if labels:
                axis.set_tick_params(labelsize=float(labels[0].get_fontsize()) * TEXT)
    for text in figure.findobj(Text):
        if id(text) not in ticks:
            text.set_fontsize(float(text.get_fontsize()) * TEXT)


def _pdf_of(figure: Figure) -> bytes:
    """A figure as PDF without a date, with its text as text."""
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context({**SVG_OPTIONS, "pdf.fonttype": 42}):
        figure.savefig(stream, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return stream.getvalue()
