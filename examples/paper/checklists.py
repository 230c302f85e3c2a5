"""Two checklists for authors, filled in from the record.

The items are in ``checklists.csv``, in short words, each with the subjects of the record that answer it. CLAIM is the
update of 2024 by Tejani et al., "Checklist for Artificial Intelligence in Medical Imaging (CLAIM): 2024 Update",
Radiology: Artificial Intelligence 2024; 6(4): e240300, with 44 items. TRIPOD+AI is that of Collins et al., BMJ 2024;
385: e078378, with 27 items. The published wording is what counts.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from examples.paper.tables import NOT_RECORDED
from grandrounds.reporting.tables import plain_markdown

CHECKLISTS = {"claim": "CLAIM, update of 2024", "tripod_ai": "TRIPOD+AI"}


class ChecklistItem(NamedTuple):
    """An item: number, section, its words, and the subjects of :func:`~examples.paper.methods.facts_of`."""

    number: str
    section: str
    words: str
    subjects: tuple[str, ...] = ()


def checklist(name: str) -> list[ChecklistItem]:
    """The items of ``claim`` or ``tripod_ai``, from ``checklists.csv`` beside this file."""
    with Path(__file__).with_name("checklists.csv").open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["checklist"] == name]
    return [ChecklistItem(row["item"], row["section"], row["words"], tuple(row["subjects"].split())) for row in rows]


FOR_AUTHORS = "to be completed by the authors"
CHECKLIST_COLUMNS = ("item", "section", "what it asks for", "state", "from the record")
FILLED, PART = "from the record", "in part from the record"


def checklist_rows(items: Sequence[ChecklistItem], facts: Mapping[str, str]) -> list[list[str]]:
    """A row for each item with its state; a subject that the record lacks says so."""
    rows = []
    for item in items:
        texts = list(dict.fromkeys(facts[name] for name in item.subjects))
        known = [text != NOT_RECORDED for text in texts]
        state = (
            FOR_AUTHORS
            if not texts
            else FILLED
            if all(known)
            else PART
            if any(known)
            else f"{NOT_RECORDED}, {FOR_AUTHORS}"
        )
        rows.append([item.number, item.section, item.words, state, f"{'. '.join(texts)}." if any(known) else ""])
    return rows


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
