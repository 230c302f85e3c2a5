"""The folder of an article's parts, which is written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from grandrounds.csv_files import csv_bytes
from grandrounds.errors import ConfigurationError
from grandrounds.folders import put_in_place, temporary_sibling
from grandrounds.plotting import Drawing
from grandrounds.reporting.format import plain_markdown
from grandrounds.reporting.model import Report
from grandrounds.reporting.paper.annex import annex_tables
from grandrounds.reporting.paper.checklists import CHECKLIST_COLUMNS, checklist_markdown, checklist_rows
from grandrounds.reporting.paper.facts import facts_of, methods_paragraphs
from grandrounds.reporting.paper.figures import PAGE_MM, at_journal_widths, paper_drawings
from grandrounds.reporting.paper.items import CLAIM, TRIPOD_AI
from grandrounds.reporting.paper.latex import latex_paragraphs, latex_preview, latex_table
from grandrounds.reporting.paper.tables import paper_tables
from grandrounds.reporting.paper.word import word_document

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
    tables, annex = paper_tables(report), annex_tables([one.run for one in report.runs.values()])
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
    texts = [f"**{one.name}.** {plain_markdown(one.caption)}\n\n{plain_markdown(one.alt)}\n" for one in drawings]
    return "\n".join(["# Captions and alternative texts\n", *texts])


def _markdown(title: str, paragraphs: Sequence[tuple[str, str]]) -> str:
    return "\n".join([f"# {title}\n", *(f"**{name}.** {plain_markdown(text)}\n" for name, text in paragraphs)])
