"""What the bounds on updates cost: CPU time of norms, bounds and the final check, over that of a simulated round.

Four sites of phantoms and the job ``fedavg`` with its own options. A minute of CPU time for each network.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import run, table
from benchmarks.parties import site_names
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.federation.server import aggregate, robust
from grandrounds.federation.server.controller import RoundController
from grandrounds.federation.server.robust import BoundedContributions

NETWORKS, ROUNDS = ("compact", "resnet12"), 2


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """The cost for each network."""
    return {"cases": [cost_of_bounds(network, ROUNDS) for network in NETWORKS[: 1 if options.quick else None]]}


def cost_of_bounds(network: str, rounds: int) -> dict[str, Any]:
    """CPU seconds of norms, bounds and the final check in a simulated round of four sites, over those of the whole round."""
    spent = {"bounds": 0.0, "rounds": 0.0}

    def timed(owner: Any, name: str, key: str) -> Callable[[], None]:
        original = getattr(owner, name)

        def work(*arguments: Any, **named: Any) -> Any:
            started = time.process_time()
            try:
                return original(*arguments, **named)
            finally:
                spent[key] += time.process_time() - started

        setattr(owner, name, work)
        return lambda: setattr(owner, name, original)

    restore = [
        timed(BoundedContributions, "_bound", "bounds"),
        timed(robust, "update_norm", "bounds"),
        timed(aggregate, "require_finite_tensors", "bounds"),
        timed(RoundController, "_run_round", "rounds"),
    ]
    assignments = [f"controller.rounds={rounds}", f"problem.backbone={network}", "executor.device=cpu"]
    try:
        with tempfile.TemporaryDirectory() as folder:
            job = with_options(load_job("fedavg"), assignments)
            simulate(job, Path(folder), site_names(4))
    finally:
        for back in restore:
            back()
    per_round = {key: value / rounds for key, value in spent.items()}
    return {
        "network": network,
        "sites": 4,
        "bounds_s": round(per_round["bounds"], 5),
        "round_s": round(per_round["rounds"], 3),
        "percent": round(100 * per_round["bounds"] / per_round["rounds"], 3),
    }


def tables(result: dict[str, Any]) -> str:
    """A row for each network."""
    columns = {
        "network": "network",
        "sites": "sites",
        "CPU s of bounds per round": "bounds_s",
        "CPU s per round": "round_s",
        "%": "percent",
    }
    return table(columns, result["cases"], 4)


if __name__ == "__main__":
    run(__file__, measured, tables)
