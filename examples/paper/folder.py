"""The folder of an article's parts, written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from examples.paper.annex import annex_tables
from examples.paper.checklists import CHECKLIST_COLUMNS, CHECKLISTS, checklist, checklist_markdown, checklist_rows
from examples.paper.drawings import PAGE_MM, at_journal_widths, paper_drawings
from examples.paper.latex import latex_paragraphs, latex_preview, latex_table
from examples.paper.methods import facts_of, methods_paragraphs
from examples.paper.tables import paper_tables
from examples.paper.word import require_python_docx, word_document
from grandrounds.api.reports import Named, report_content
from grandrounds.csv_files import csv_bytes
from grandrounds.errors import ConfigurationError
from grandrounds.folders import put_in_place, temporary_sibling
from grandrounds.plotting import Drawing
from grandrounds.reporting.model import Report
from grandrounds.reporting.tables import plain_markdown


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
    runs: Named,
    folder: Path,
    *,
    word: str | None = None,
    reference: str | None = None,
    model: str | None = None,
    step: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write tables, figures, methods, checklists and the annex.

    Args:
        runs: names and workspaces. Runs that differ in their seed alone are one row.
        folder: of the files; it must be empty or not exist.
        word: title of the Word documents, which are written too; python-docx is needed.
        reference: name of the method to compare with; local training by default, else the first.
        model: ``common`` or ``own``, whose scores are shown; by default the common one where there is one.
        step: is called with what is done next.

    Returns:
        The paths that were written.

    Raises:
        ConfigurationError: if there is no run, the runs cannot be compared, there is something in the folder, or
            Word documents are asked for and python-docx is not installed.
        DataError: if a run is damaged.
    """
    require_new_folder(folder)
    if word is not None:
        require_python_docx()
    report = report_content(runs, None, title=word, reference=reference, model=model, step=step)
    names = []
    with temporary_sibling(folder.absolute()) as temporary:
        for name, content in _files(report, word is not None, step):
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
    for name, title in CHECKLISTS.items():
        rows = checklist_rows(checklist(name), facts)
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
