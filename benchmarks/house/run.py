"""Print how large the project is, by part, and write the figures as JSON.

python -m benchmarks.house                                     # this checkout
python -m benchmarks.house --tree ../before --out before.json  # another one
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.house.counting import PACKAGE, job_lines, rows_of, words_of
from benchmarks.house.walks import STARTS, Package, Walk
from benchmarks.tables import markdown_table

HERE = Path(__file__).resolve().parent
ON_A_MACHINE = False
"""Counts are the same on every machine."""
COLUMNS = ("files", "lines", "code", "imports", "functions", "over_10_branches", "over_15_branches")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=HERE.parents[1], help="the checkout that is counted")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    found = measured(arguments.tree.resolve())
    print(tables(found))
    if arguments.out:
        from grandrounds.files import write_json

        write_json(arguments.out, found)


def measured(tree: Path) -> dict[str, Any]:
    """All figures of a checkout."""
    package = Package(tree / PACKAGE)
    return {
        "commit": output_of(["git", "describe", "--always", "--dirty", "--exclude=*"], tree),
        "parts": {name: {column: row[column] for column in COLUMNS} for name, row in rows_of(tree).items()},
        "walks": {name: Walk(package, start).counts() for name, start in STARTS.items()},
        **json.loads(output_of([sys.executable, str(HERE / "surface.py"), str(tree)], tree)),
        "job_lines": job_lines(tree),
        "words": words_of(tree),
    }


def output_of(command: list[str], tree: Path) -> str:
    """What a program prints that imports the package of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "custom")}
    return subprocess.run(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def tables(found: dict[str, Any]) -> str:
    """The figures as tables in Markdown."""
    titles = ["part", "files", "lines", "code lines", "of which imports", "functions", "over 10 branches", "over 15"]
    parts = [
        [name, *(row[column] for column in COLUMNS[:3]), f"{row['imports']} ({row['imports'] / row['code']:.1%})",
         *(row[column] for column in COLUMNS[4:])]
        for name, row in found["parts"].items()
    ]  # fmt: skip
    walks = [[name, row["stays"], row["rooms"], row["names"]] for name, row in found["walks"].items()]
    others = [
        ["options of jobs", found["options"]],
        ["commands", found["commands"]],
        ["rows of options of commands", found["option_rows"]],
        ["lines of JSON in jobs", found["job_lines"]],
        *([f"words, {pages}", count] for pages, count in found["words"].items()),
    ]
    return "\n\n".join((
        f"Commit {found['commit']}.",
        markdown_table(titles, parts, 1),
        markdown_table(["walk", "stays", "modules", "names"], walks, 1),
        markdown_table(["", "number"], others, 1),
    ))  # fmt: skip
