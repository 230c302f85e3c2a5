"""Rounds between real processes from startup kits on one machine: time beyond training, and memory of each kind of process.

A server and two, then four hospitals with certificates of their own, the network ``compact`` and two steps of four
images. About a minute and a half of CPU time, most of it imports: each party has a process that stays and one for the
job.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import MEBIBYTE, run, spread, table
from benchmarks.processes import resident_bytes
from benchmarks.rounds.simulator import BEYOND, Sampler, beyond_training
from benchmarks.soak.run import KINDS, free_port, processes_of_kind
from grandrounds.deployment.jobs import load_job, with_options
from grandrounds.deployment.local_federation import prepare, start, stop
from grandrounds.deployment.submission import submit_and_watch
from grandrounds.federation.server.record import read_events

SITES, ROUNDS = (2, 4), 20
OPTIONS = (
    *("controller.run_name=rounds", "controller.validate_every=0", "problem.image_size=32"),
    *("executor.steps=2", "executor.batch_size=4", "executor.device=cpu", "executor.cpu_threads=1"),
)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Both federations."""
    sites, rounds = ((2,), 4) if options.quick else (SITES, ROUNDS)
    return {"cases": [provisioned_rounds(count, rounds) for count in sites]}


def provisioned_rounds(sites: int, rounds: int) -> dict[str, Any]:
    """Seconds of each round but the first less its longest training, and the largest process of each kind."""
    job = with_options(load_job("fedavg"), [*OPTIONS, f"controller.rounds={rounds}"])
    names = [f"hospital-{letter}" for letter in "abcd"[:sites]]
    largest = dict.fromkeys(KINDS, 0)

    with tempfile.TemporaryDirectory() as folder:
        federation = prepare(Path(folder) / "federation", names, free_port())

        def look() -> None:
            for kind in KINDS:
                largest[kind] = max([largest[kind], *map(resident_bytes, processes_of_kind(federation, kind))])

        try:
            start(federation)
            with Sampler(look):
                kit = federation.kit(federation.researcher)
                submit_and_watch(kit, job, Path(folder) / "results", lambda line: None)
        finally:
            stop(federation)
        events = read_events(federation.kits / federation.server / "grandrounds" / "rounds" / "server")
    return {
        "sites": sites,
        "rounds": rounds,
        "seconds_beyond_training": spread(beyond_training(events, sites, sites)),
        "resident_mib": {kind: round(size / MEBIBYTE, 1) for kind, size in largest.items()},
    }


def tables(result: dict[str, Any]) -> str:
    memory = {f"MiB of {kind}": f"resident_mib.{kind}" for kind in KINDS}
    return table({"sites": "sites", **BEYOND, **memory}, result["cases"], 2)


if __name__ == "__main__":
    run(__file__, measured, tables)
