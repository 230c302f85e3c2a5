"""Make every fault of the suite in a federation of real processes, and tabulate what each has cost.

The faults are the tests of ``tests/system/faults``: each ends with a usable model and a record that its test compares with
what has happened. A run leaves a note of the rounds that sites have missed, of complete rounds that were done again, of its
submissions, and of what it has said.

    python -m benchmarks.faults.run
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, run, table

NOTES_VARIABLE = "GRANDROUNDS_FAULT_NOTES"
"""Names the folder in which every run that has ended leaves what it has cost."""
FAULTS = ROOT / "tests" / "system" / "faults"
REHEARSAL = "test_rehearsal"
"""Its faults have a table of their own."""


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """One file of tests after the other; one whose results are in the workspace is not run again."""
    if options.again:
        shutil.rmtree(options.workspace, ignore_errors=True)
    options.workspace.mkdir(parents=True, exist_ok=True)
    chosen = ["-k", "stopped_while_it_starts or half_a_line"] if options.quick else []
    files = sorted(path for path in FAULTS.glob("test_*.py") if path.stem != REHEARSAL)
    return {"faults": [case for path in files for case in _cases(path, options.workspace / path.stem, chosen)]}


def _cases(path: Path, folder: Path, chosen: list[str]) -> list[dict[str, Any]]:
    results, notes = folder.absolute() / "results.xml", folder / "notes.jsonl"
    if not results.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        command = [sys.executable, "-m", "pytest", "-q", "-m", "faults", f"--junitxml={results}", str(path), *chosen]
        environment = {**os.environ, NOTES_VARIABLE: str(results.parent), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
    noted = [json.loads(line) for line in notes.read_text().splitlines()] if notes.is_file() else []
    return [_case(test, noted) for test in ElementTree.parse(results).iter("testcase")]


def _case(test: ElementTree.Element, notes: list[dict[str, Any]]) -> dict[str, Any]:
    """What a test has found: of several runs the one in which a site has missed most."""
    name = str(test.get("name"))
    failed = test.find("failure") is not None or test.find("error") is not None
    state = "failed" if failed else "skipped" if test.find("skipped") is not None else "passed"
    runs = [note for note in notes if note["test"] == name]
    costs = {
        "missed": max((max(note["missed"].values(), default=0) for note in runs), default=None),
        "repeated": max((note["repeated"] for note in runs), default=None),
        "submissions": max((note["submissions"] for note in runs), default=None),
        "told": next((line for note in runs for line in note["told"] if not line.startswith("job ")), ""),
    }
    return {"fault": name, "state": state, "seconds": round(float(test.get("time", 0)), 1), **costs, "runs": runs}


def tables(result: dict[str, Any]) -> str:
    """One row for each fault, in words."""
    columns = {
        "fault": "words",
        "rounds missed, of one site": "missed",
        "done again": "repeated",
        "submissions": "submissions",
        "what is said": "told",
        "test": "state",
    }
    cases = [
        {**case, "words": case["fault"].removeprefix("test_").replace("_", " "), "told": case["told"].replace("|", "/")}
        for case in result["faults"]
    ]
    return table(columns, cases, 0)


if __name__ == "__main__":
    run(
        __file__,
        measured,
        tables,
        workspace={"type": Path, "default": Path("runs/faults"), "help": "where an interrupted measurement goes on"},
        again={"action": "store_true", "help": "begin anew"},
    )
