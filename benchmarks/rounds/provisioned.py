"""Rounds between real processes from startup kits on one machine: time beyond training, and memory of each kind of process.

A server and two, then four hospitals with certificates of their own, a job that is submitted as a researcher does it, the
network ``compact`` and two steps of four images. The kits are those of ``grandrounds poc``. About a minute and a half of
processor time, most of it imports: each party has a process that stays and one for the job.

    python -m benchmarks.rounds.provisioned
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import MEBIBYTE, arguments_of, report, spread
from benchmarks.processes import resident_bytes, running_module
from benchmarks.rounds.simulator import Sampler, beyond_training
from benchmarks.soak.run import KINDS, free_port
from grandrounds.deployment.jobs import load_job, with_options
from grandrounds.deployment.local_federation import Federation, prepare, start, stop
from grandrounds.deployment.submission import submit_and_watch
from grandrounds.evaluation.tables import markdown_table
from grandrounds.federation.server.record import read_events

RESULT = Path(__file__).with_name("provisioned.json")
SITES, ROUNDS = (2, 4), 20
OPTIONS = (
    *("controller.run_name=rounds", "controller.validate_every=0", "problem.image_size=32"),
    *("executor.steps=2", "executor.batch_size=4", "executor.device=cpu", "executor.cpu_threads=1"),
)


def main() -> None:
    """Measure both federations, print a table and write ``provisioned.json``."""
    options = arguments_of(__doc__, RESULT)
    load = os.getloadavg()[0]
    sites, rounds = ((2,), 4) if options.quick else (SITES, ROUNDS)
    result = {"cases": [provisioned_rounds(count, rounds) for count in sites]}
    print(tables(result))
    report(result, options, load)


def provisioned_rounds(sites: int, rounds: int) -> dict[str, Any]:
    """Seconds of each round but the first less its longest training, and the largest process of each kind."""
    job = with_options(load_job("fedavg"), [*OPTIONS, f"controller.rounds={rounds}"])
    names = [f"hospital-{letter}" for letter in "abcd"[:sites]]
    with tempfile.TemporaryDirectory() as folder:
        federation = prepare(Path(folder) / "federation", names, free_port())
        try:
            start(federation)
            largest = Largest(federation)
            with Sampler(largest.look):
                kit = federation.kit(federation.researcher)
                submit_and_watch(kit, job, Path(folder) / "results", lambda line: None)
        finally:
            stop(federation)
        events = read_events(federation.kits / federation.server / "grandrounds" / "rounds" / "server")
    return {
        "sites": sites,
        "rounds": rounds,
        "seconds_beyond_training": spread(beyond_training(events, sites, sites)),
        "resident_mib": {kind: round(size / MEBIBYTE, 1) for kind, size in largest.bytes.items()},
    }


class Largest:
    """The largest resident memory of each kind of a federation's processes, in bytes, over all that was looked at."""

    def __init__(self, federation: Federation) -> None:
        self.bytes = dict.fromkeys(KINDS, 0)
        self._federation = federation

    def look(self) -> None:
        """Look at the processes that there are."""
        for kind, module in KINDS.items():
            names = [self._federation.server] if kind.startswith("server") else self._federation.sites
            found = [one for name in names for one in running_module(self._federation.kits / name, module)]
            self.bytes[kind] = max([self.bytes[kind], *map(resident_bytes, found)])


def tables(result: dict[str, Any]) -> str:
    """The result for a reader."""
    rows = [
        [
            case["sites"],
            *(case["seconds_beyond_training"][name] for name in ("median", "lowest", "highest")),
            *(case["resident_mib"][kind] for kind in KINDS),
        ]
        for case in result["cases"]
    ]
    return markdown_table(["sites", "s beyond training", "least", "most", *(f"MiB of {k}" for k in KINDS)], rows, 2)


if __name__ == "__main__":
    main()
