"""Measure many sites in one process: time and memory of each, with 10, 100 and 1000 sites.

All sites have the same few images. Each number of sites is measured in a process of its own: once without training, which
is the federation's own cost, and once with the network ``compact`` and one step of two images. A run takes about
three minutes of CPU time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Cost, in_child, milliseconds, peak_mib, resident_mib, run, table

SITES = (10, 100, 1000)
KINDS = ("no training", "compact")
PARAMETERS = 100


def measured(options: argparse.Namespace) -> dict[str, Any]:
    counts, rounds = ((3, 6), 4) if options.quick else (SITES, 4)
    cases = [{"kind": kind, "sites": sites, "rounds": rounds} for kind in KINDS for sites in counts]
    return {"cases": [in_child("benchmarks.scaling.run.case", **case) for case in cases]}


def case(kind: str, sites: int, rounds: int) -> dict[str, Any]:
    """Costs per site and round, and memory before the run, in its last round and at its peak."""
    from benchmarks.parties import one_set_of_images, run_clocked, site_names, trained_job, trivial_job

    training = "executor.steps=1", "executor.batch_size=2"
    job = trained_job(rounds, *training) if kind == "compact" else trivial_job(PARAMETERS, rounds)
    with tempfile.TemporaryDirectory() as folder:
        images = one_set_of_images(Path(folder) / "images")
        before, began = resident_mib(), Cost(time.perf_counter(), time.process_time())
        clock, summary = run_clocked(job, Path(folder), site_names(sites), images)
    if summary["contributions"] != dict.fromkeys(site_names(sites), rounds):
        raise SystemExit("not every site has taken part in every round")
    costs, (first, second, *_) = clock.rounds(), clock.starts
    return {
        "kind": kind,
        "sites": sites,
        "rounds": len(costs),
        "milliseconds_per_round": milliseconds(costs),
        "milliseconds_per_site_and_round": milliseconds([cost.over(sites) for cost in costs]),
        "seconds_before_first_round": Cost(first.wall - began.wall, first.cpu - began.cpu)._asdict(),
        "seconds_of_first_round": Cost(second.wall - first.wall, second.cpu - first.cpu)._asdict(),
        "mib_before": round(before, 1),
        "mib_with_all_sites": round(clock.resident[-1], 1),
        "mib_per_site": round((clock.resident[-1] - before) / sites, 3),
        "peak_mib": round(peak_mib(), 1),
    }


def tables(result: dict[str, Any]) -> str:
    columns = {
        "what a site does": "kind", "sites": "sites",
        "ms per site and round": "milliseconds_per_site_and_round.wall.median",
        "of the processor": "milliseconds_per_site_and_round.cpu.median", "s per round": "seconds",
        "s of the processor before the first round": "seconds_before_first_round.cpu",
        "s of the processor in it": "seconds_of_first_round.cpu",
        "MiB per site": "mib_per_site", "peak MiB": "peak_mib",
    }  # fmt: skip
    cases = [{**case, "seconds": case["milliseconds_per_round"]["wall"]["median"] / 1000} for case in result["cases"]]
    return table(columns, cases, 2)


if __name__ == "__main__":
    run(__file__, measured, tables)
