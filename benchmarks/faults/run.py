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
REHEARSAL = "test_rehearsal"
"""Its faults have a table of their own."""


def measured(options: argparse.Namespace) -> dict[str, Any]:
    shutil.rmtree(options.workspace, ignore_errors=True)
    options.workspace.mkdir(parents=True)
    results = options.workspace.absolute() / "results.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "faults", f"--junitxml={results}", "tests/system/faults"]
    chosen = "stopped_at_start or half_a_line" if options.quick else f"not {REHEARSAL}"
    environment = {**os.environ, NOTES_VARIABLE: str(results.parent), "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "-k", chosen], cwd=ROOT, env=environment, check=False)
    notes = [json.loads(line) for line in (results.parent / "notes.jsonl").read_text().splitlines()]
    cases = [_case(test, notes) for test in ElementTree.parse(results).iter("testcase")]
    return {"faults": cases}


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
        "told": next((line for note in runs for line in note["told"]), ""),
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
        __file__, measured, tables, workspace={"type": Path, "default": Path("runs/faults"), "help": "is emptied first"}
    )
