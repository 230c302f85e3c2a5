"""Long runs: whether a round late in a run costs what an early one does, in time, memory and bytes.

Sites do no training. 1,000 sites and 1,000 rounds take about 25 minutes.

python -m benchmarks.scaling.long
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import MEBIBYTE, in_child, peak_mib, run, table

SITES, ROUNDS, AROUND = (100, 1000), 1000, 10
PARAMETERS = 100


def measured(options: argparse.Namespace) -> dict[str, Any]:
    counts, rounds = ((3,), 30) if options.quick else (SITES, ROUNDS)
    return {"cases": [in_child("benchmarks.scaling.long.case", sites=sites, rounds=rounds) for sites in counts]}


def case(sites: int, rounds: int) -> dict[str, Any]:
    """A run's costs, and those of a round as the median of ten at its beginning, without the first, and at its end."""
    from benchmarks.parties import one_set_of_images, run_clocked, site_names, trivial_job

    with tempfile.TemporaryDirectory() as folder:
        images = one_set_of_images(Path(folder) / "images")
        clock, _ = run_clocked(trivial_job(PARAMETERS, rounds), Path(folder), site_names(sites), images)
        kept = sum(path.stat().st_size for path in Path(folder, "run").rglob("*") if path.is_file())
    costs = clock.rounds()
    written = [after - before for before, after in zip(clock.written[1:-1], clock.written[2:], strict=True)]
    found: dict[str, Any] = {"sites": sites, "rounds": rounds}
    for name, part in (("first", slice(AROUND)), ("last", slice(-AROUND, None))):
        found[name] = {
            "milliseconds": round(1000 * statistics.median(cost.wall for cost in costs[part]), 1),
            "cpu_milliseconds": round(1000 * statistics.median(cost.cpu for cost in costs[part]), 1),
            "kib_written": round(statistics.median(written[part]) / 1024, 1),
        }
    return {
        **found,
        "late_by_early": round(found["last"]["cpu_milliseconds"] / found["first"]["cpu_milliseconds"], 3),
        "seconds": round(clock.starts[-1].wall - clock.starts[0].wall, 1),
        "mib_kept": round(kept / MEBIBYTE, 1),
        "mib_early": round(clock.resident[AROUND], 1),
        "peak_mib": round(peak_mib(), 1),
    }


def tables(result: dict[str, Any]) -> str:
    columns = {
        "sites": "sites", "rounds": "rounds", "ms a round, rounds 2 to 11": "first.milliseconds",
        "last ten": "last.milliseconds", "CPU time, late / early": "late_by_early",
        "KiB written a round, early": "first.kib_written", "late": "last.kib_written", "seconds": "seconds",
        "MiB on disk": "mib_kept", "MiB of memory in round 11": "mib_early", "peak": "peak_mib",
    }  # fmt: skip
    return table(columns, result["cases"], 2)


if __name__ == "__main__":
    run(__file__, measured, tables)
