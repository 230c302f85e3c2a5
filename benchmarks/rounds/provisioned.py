"""Measure rounds between real processes from startup kits: time beyond training, and memory of each kind of process.

A server and two, then four hospitals with certificates of their own train the network ``compact`` with two steps of four
images. A run takes about a minute and a half of CPU time, most of it for imports: each party has a process that stays and
one for the job.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.federation import new_federation
from benchmarks.measure import MEBIBYTE, run, spread, table
from benchmarks.parties import SMALL_TRAINING
from benchmarks.processes import resident_bytes
from benchmarks.rehearsal.federated_run import MODULES, started_run
from benchmarks.rounds.simulator import BEYOND, SAMPLE_SECONDS, beyond_training
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options

SITES, ROUNDS = (2, 4), 20


def measured(options: argparse.Namespace) -> dict[str, Any]:
    sites, rounds = ((2,), 4) if options.quick else (SITES, ROUNDS)
    return {"cases": [provisioned_rounds(count, rounds) for count in sites]}


def provisioned_rounds(sites: int, rounds: int) -> dict[str, Any]:
    """Seconds of each round but the first less its longest training, and the largest process of each kind."""
    job = with_options(
        load_job("fedavg"), [*SMALL_TRAINING, "controller.run_name=rounds", f"controller.rounds={rounds}"]
    )
    largest = dict.fromkeys(MODULES, 0)
    with tempfile.TemporaryDirectory() as folder:
        federation = new_federation(Path(folder) / "federation", [f"hospital-{letter}" for letter in "abcd"[:sites]])
        with started_run(federation, job) as found:
            while found.is_active(SAMPLE_SECONDS):
                for kind in MODULES:
                    largest[kind] = max([largest[kind], *map(resident_bytes, found.processes(kind))])
        beyond = beyond_training(found.events(), sites, sites)
    return {
        "sites": sites,
        "rounds": rounds,
        "seconds_beyond_training": spread(beyond),
        "resident_mib": {kind: round(size / MEBIBYTE, 1) for kind, size in largest.items()},
    }


def tables(result: dict[str, Any]) -> str:
    memory = {f"MiB of {kind}": f"resident_mib.{kind}" for kind in MODULES}
    return table({"sites": "sites", **BEYOND, **memory}, result["cases"], 2)


if __name__ == "__main__":
    run(__file__, measured, tables)
