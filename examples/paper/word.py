"""Tables and text for Word, by python-docx."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

from examples.paper.tables import PaperTable
from grandrounds.errors import ConfigurationError

POINTS = 8
"""Size of the text in tables."""


def require_python_docx() -> None:
    """Refuse to go on without the package python-docx.

    Raises:
        ConfigurationError: then.
    """
    if find_spec("docx") is None:
        raise ConfigurationError("a Word document needs python-docx: pip install python-docx")


def word_document(title: str, paragraphs: Iterable[tuple[str, str]], tables: Sequence[PaperTable]) -> bytes:
    """A document of titled paragraphs and numbered tables, on landscape pages."""
    import docx
    from docx.enum.section import WD_ORIENT

    document = docx.Document()
    page = document.sections[0]
    page.orientation, page.page_width, page.page_height = WD_ORIENT.LANDSCAPE, page.page_height, page.page_width
    document.add_heading(_printable(title), 1)
    for name, text in paragraphs:
        paragraph = document.add_paragraph()
        paragraph.add_run(f"{_printable(name)}. ").bold = True
        paragraph.add_run(_printable(text))
    for number, table in enumerate(tables, 1):
        document.add_paragraph(_printable(f"Table {number}. {table.caption}"), style="Caption")
        _add_table(document, table)
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def _add_table(document: Any, table: PaperTable) -> None:
    from docx.enum.text import WD_ALIGN_PARAGRAPH
    from docx.shared import Pt

    lines = [table.header, *table.rows]
    grid = document.add_table(len(lines), len(table.header), style="Light Shading")
    for row, line in zip(grid.rows, lines, strict=True):
        for column, (cell, text) in enumerate(zip(row.cells, line, strict=True)):
            (paragraph,) = cell.paragraphs
            paragraph.add_run(_printable(text)).font.size = Pt(POINTS)
            if column >= table.text_columns:
                paragraph.alignment = WD_ALIGN_PARAGRAPH.RIGHT
    document.add_paragraph()


def _printable(text: str) -> str:
    """A text without control characters, which XML does not have."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
