"""The README's first command in each form of frozen layers: CPU seconds of whole processes, in turn.

``--before`` names a checkout of an earlier state, whose folder ``custom`` is imported in its place for the form ``exact``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from benchmarks.commands.run import cpu_seconds, grandrounds
from benchmarks.experiment import DATA
from benchmarks.measure import run, table
from grandrounds.deployment.processes import variables_set
from grandrounds.models.inference.forward import EXACT, FORMS

BEFORE = "before"


def measured(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw(folder / "images", 20 if options.quick else options.of_a_class)
        images = sum(1 for _ in (folder / "images").rglob("*.jpg"))
        spent = {}
        for state, form in [*([(BEFORE, EXACT)] if options.before else []), *(("now", form) for form in FORMS)]:
            where = ["--images", str(folder / "images"), "--workspace", str(folder / state / form)]
            code = {"PYTHONPATH": str(options.before / "custom")} if state == BEFORE else {}
            with variables_set(code):
                spent[state, form] = cpu_seconds(grandrounds("simulate", *where, *in_form(form)))
            print(state, form, round(spent[state, form], 1), file=sys.stderr, flush=True)
    first = next(iter(spent.values()))
    cases = [
        {"state": state, "form": form, "cpu_seconds": round(seconds, 1), "saved": round(1 - seconds / first, 3)}
        for (state, form), seconds in spent.items()
    ]
    return {"images": images, "command": cases}


def draw(folder: Path, of_a_class: int | None) -> None:
    """Images by class; all, or the first of each class."""
    with zipfile.ZipFile(DATA / "pbc" / "pbc_barcelona_96.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        for label in sorted({os.path.dirname(name) for name in names}):
            archive.extractall(folder, [name for name in names if os.path.dirname(name) == label][:of_a_class])


def in_form(form: str) -> list[str]:
    return ["--workers", "1", "--set", f"executor.inference={form}"]


def tables(result: dict[str, Any]) -> str:
    costs = {"state": "state", "form": "form", "CPU s": "cpu_seconds", "saved": "saved"}
    return f"{table(costs, result['command'], 2)}\n\n({result['images']} images)"


if __name__ == "__main__":
    few = {"type": int, "help": "take the first images of each class only"}
    run(__file__, measured, tables, timed=False, of_a_class=few, before={"type": Path})
