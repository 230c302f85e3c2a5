"""A thousand simulated hospitals with real images: CPU seconds and peak memory of each command, to the report.

HAM10000's images are divided at random, by lesion, among sites of ten images each. All training images are labelled, and
each site has its own images for validation and test. Networks read 64 pixels. The caches are empty at first.

python -m benchmarks.scaling.thousand
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.commands.run import cpu_seconds, grandrounds
from benchmarks.experiment import DATA
from benchmarks.measure import run, table
from grandrounds.deployment.processes import variables_set

SITES, SIDE = 1000, 64


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Each command in turn, the run with one process."""
    count = 20 if options.quick else SITES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sites, work, page = (str(folder / part) for part in ("sites", "run", "report"))
        divided = ["--scheme", "iid", "--sites", str(count), "--set", "labelled=1"]
        commands = {
            "division of the images": [
                "partition",
                "ham10000",
                "--root",
                str(DATA / "ham10000"),
                *divided,
                "--out",
                sites,
            ],
            "simulation": ["simulate", "ridge", "--sites-dir", sites, "--image-size", str(SIDE), "--workspace", work],
            "report": ["report", work, "--sites-dir", sites, "--out", page],
        }
        commands["simulation"] += ["--workers", "1"]
        with variables_set({"GRANDROUNDS_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}):
            cases: list[dict[str, Any]] = [{"command": what, **spent(command)} for what, command in commands.items()]
        size = sum(path.stat().st_size for path in Path(page).glob("*.html")) / 1e6
    total = sum(case["cpu_seconds"] for case in cases)
    cases.append({"command": "all", "cpu_seconds": total, "peak_mib": cases[-1]["peak_mib"]})
    return {"sites": count, "html_mb": size, "cases": cases}


def spent(command: list[str]) -> dict[str, float]:
    """CPU seconds of a command, and the peak of the largest child so far, in MiB."""
    seconds = cpu_seconds(grandrounds(*command))
    return {"cpu_seconds": seconds, "peak_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024}


def tables(result: dict[str, Any]) -> str:
    columns = {"command": "command", "CPU s": "cpu_seconds", "largest MiB so far": "peak_mib"}
    return f"{result['sites']} sites; the page has {result['html_mb']:.2f} MB.\n\n" + table(columns, result["cases"], 0)


if __name__ == "__main__":
    run(__file__, measured, tables, timed=False)
