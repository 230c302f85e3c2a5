"""Two methods on one small partition, with the state before beside it: CPU seconds of whole processes, in turn.

600 blood cells of PBC (75 of each class) at four sites, 64 pixels, one worker. ``--before`` names a checkout of an earlier
state, whose folder ``custom`` is imported in its place. Other programs may run meanwhile: their share is in the result.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from benchmarks.commands.run import cpu_seconds, grandrounds
from benchmarks.experiment import DATA
from benchmarks.measure import run, spread, table
from grandrounds.deployment.processes import variables_set

OF_A_CLASS, SIDE, ROUNDS = 75, 64, 2
METHODS = ("fedperl", "fedirm")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Both methods in either state, in turn."""
    states = {"now": None, **({"before": options.before} if options.before else {})}
    turns: list[dict[tuple[str, str], float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw(folder / "images")
        cpu_seconds(grandrounds("import", str(folder / "images"), "--out", str(folder / "sites")))
        for number in range(1 if options.quick else options.repeats):
            spent = {}
            for state, checkout in states.items():
                place = folder / f"{state}{number}"
                place.mkdir()
                (place / "sites").symlink_to(folder / "sites")
                compiled = {"PYTHONDONTWRITEBYTECODE": ""}  # as an installed package is
                code = compiled | ({"PYTHONPATH": str(checkout / "custom")} if checkout else {})
                with variables_set(code):
                    for method in METHODS:
                        spent[method, state] = cpu_seconds(simulated(method, place))
            turns.append(spent)
    cases = [
        {"method": method, "state": state, "cpu_seconds": spread([turn[method, state] for turn in turns], 1)}
        for method in METHODS
        for state in states
    ]
    return {"cases": cases}


def simulated(method: str, place: Path) -> list[str]:
    """A run on the partition."""
    size = ["--image-size", str(SIDE), "--rounds", str(ROUNDS), "--workers", "1"]
    where = ["--sites-dir", str(place / "sites"), "--workspace", str(place / method)]
    return grandrounds("simulate", method, "--preset", "recommended", *where, *size)


def draw(folder: Path) -> None:
    """The first images of each class."""
    with zipfile.ZipFile(DATA / "pbc" / "pbc_barcelona_96.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        for label in sorted({os.path.dirname(name) for name in names}):
            archive.extractall(folder, [name for name in names if os.path.dirname(name) == label][:OF_A_CLASS])


def tables(result: dict[str, Any]) -> str:
    columns = {
        "method, in this order": "method", "state": "state", "CPU s": "cpu_seconds.median",
        "lowest": "cpu_seconds.lowest", "highest": "cpu_seconds.highest",
    }  # fmt: skip
    return table(columns, result["cases"], 1)


if __name__ == "__main__":
    more: dict[str, Any] = {"repeats": {"type": int, "default": 2}, "before": {"type": Path}}
    run(__file__, measured, tables, timed=False, **more)
