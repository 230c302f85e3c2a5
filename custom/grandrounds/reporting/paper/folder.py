"""The folder of an article's parts, which is written whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.csv_files import csv_bytes
from grandrounds.errors import ConfigurationError
from grandrounds.folders import put_in_place, temporary_sibling
from grandrounds.plotting import Drawing
from grandrounds.reporting.figures.catalogue import comparison_drawings, run_drawings
from grandrounds.reporting.format import plain_markdown
from grandrounds.reporting.model import Report
from grandrounds.reporting.page import SVG_OPTIONS, svg_of
from grandrounds.reporting.paper.annex import annex_tables
from grandrounds.reporting.paper.documents import latex_paragraphs, latex_preview, latex_table, word_document
from grandrounds.reporting.paper.facts import facts_of, methods_paragraphs
from grandrounds.reporting.paper.items import CHECKLIST_COLUMNS, CLAIM, TRIPOD_AI, checklist_markdown, checklist_rows
from grandrounds.reporting.paper.tables import paper_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CHECKLISTS = {"claim": ("CLAIM, update of 2024", CLAIM), "tripod_ai": ("TRIPOD+AI", TRIPOD_AI)}


def require_new_folder(folder: Path) -> None:
    """Refuse a folder in which something is.

    Raises:
        ConfigurationError: then, or if it is a file.
    """
    if folder.is_file():
        raise ConfigurationError(f"{folder} is a file; name a folder that does not exist")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigurationError(
            f"{folder} is not empty, and what was edited there would be lost; name another folder, or move this one away"
        )


def write_paper(
    report: Report, folder: Path, word: bool = False, step: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Write tables, figures, methods, checklists and the annex.

    Args:
        report: of the runs.
        folder: of the files; it must be empty or not exist.
        word: write Word documents too.
        step: is called with what is done next.

    Returns:
        The paths that were written.

    Raises:
        ConfigurationError: if there is something in the folder.
    """
    require_new_folder(folder)
    with temporary_sibling(folder.absolute()) as temporary:
        names = []
        for name, content in _files(report, word, step):
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            names.append(name)
        require_new_folder(folder)
        put_in_place(temporary, folder.absolute())
    return [folder / name for name in names]


def _files(report: Report, word: bool, step: Callable[[str], None]) -> Iterator[tuple[str, bytes]]:
    step("drawing the figures")
    drawings = paper_drawings(report)
    for drawing in drawings:
        step(f"writing {drawing.name.replace('_', ' ')}")
        for name, content in at_journal_widths(drawing):
            yield f"figures/{name}", content
    yield "figures/captions.md", _captions(drawings).encode()
    step("writing tables and text")
    tables, annex = paper_tables(report), annex_tables([reported.run for reported in report.runs.values()])
    for table in [*tables, *annex]:
        yield f"tables/{table.name}.csv", csv_bytes(table.plain_header or table.header, table.plain_rows or table.rows)
        yield f"tables/{table.name}.tex", latex_table(table).encode()
    facts = facts_of(report, [drawing.name for drawing in drawings])
    methods = methods_paragraphs(facts)
    yield "methods.md", _markdown("Methods", methods).encode()
    yield "methods.tex", latex_paragraphs(methods).encode()
    if word:
        yield "tables.docx", word_document(report.title, methods, tables)
        yield "annex.docx", word_document("Annex for data protection", [("Guarantees", facts["privacy"])], annex)
    for name, (title, items) in CHECKLISTS.items():
        rows = checklist_rows(items, facts)
        yield f"checklists/{name}.md", checklist_markdown(title, rows).encode()
        yield f"checklists/{name}.csv", csv_bytes(CHECKLIST_COLUMNS, rows)
    pictures = [(f"figures/{PAGE_MM}mm/{drawing.name}.pdf", drawing.caption) for drawing in drawings]
    yield "preview.tex", latex_preview([*tables, *annex], pictures).encode()


def _captions(drawings: Sequence[Drawing]) -> str:
    texts = [
        f"**{drawing.name}.** {plain_markdown(drawing.caption)}\n\n{plain_markdown(drawing.alt)}\n"
        for drawing in drawings
    ]
    return "\n".join(["# Captions and alternative texts\n", *texts])


def _markdown(title: str, paragraphs: Sequence[tuple[str, str]]) -> str:
    return "\n".join([f"# {title}\n", *(f"**{name}.** {plain_markdown(text)}\n" for name, text in paragraphs)])


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
