"""Checklists of an article: what the record answers is filled in, the rest is for the authors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grandrounds.reporting.format import plain_markdown
from grandrounds.reporting.paper.items import ChecklistItem

FOR_AUTHORS = "to be completed by the authors"
CHECKLIST_COLUMNS = ("item", "section", "what it asks for", "state", "from the record")
FILLED, PART, LACKING = "from the record", "in part from the record", "not recorded"


def checklist_rows(items: Sequence[ChecklistItem], facts: Mapping[str, str]) -> list[list[str]]:
    """A row for each item with its state; a subject that the record lacks says so."""
    found = []
    for item in items:
        texts = list(dict.fromkeys(facts[name] for name in item.subjects))
        known = [text != LACKING for text in texts]
        state = (
            FOR_AUTHORS if not texts else FILLED if all(known) else PART if any(known) else f"{LACKING}, {FOR_AUTHORS}"
        )
        found.append([item.number, item.section, item.words, state, f"{'. '.join(texts)}." if any(known) else ""])
    return found


def checklist_markdown(title: str, rows: Sequence[Sequence[str]]) -> str:
    """A checklist as a table of Markdown."""
    lines = [
        f"# {title}",
        "",
        "Items in short words; the published checklist is what counts. What a run's record answers is filled in and must be "
        "read before it is sent; the record knows nothing of patients' recruitment, ethics or the clinic.",
        "",
        f"| {' | '.join(CHECKLIST_COLUMNS)} |",
        f"|{'---|' * len(CHECKLIST_COLUMNS)}",
        *(f"| {' | '.join(map(plain_markdown, row))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"
