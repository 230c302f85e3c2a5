"""Faults of one hospital at random moments of all phases of a round, and of a secure sum: what each has cost.

Sessions of ten faults have four hospitals and a seed of their own, the session's number; every second one has secure sums.
Each session is a rehearsal with new kits and is written when it has ended, so that an interrupted measurement goes on with
the next one.

python -m benchmarks.rehearsal.random_faults --draws 300
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import run, table
from benchmarks.rehearsal.federated_run import MOMENTS, SUM_MOMENTS
from benchmarks.rehearsal.outcome import by_fault
from benchmarks.rehearsal.rehearse import Rehearsal, rehearse
from benchmarks.rehearsal.watching import FaultCost
from grandrounds.deployment.kit.provision import PROJECT, local_project, provision, read_project, write_project
from grandrounds.files import read_json_object, write_json

SITES = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")
KINDS = frozenset({"cut connection", "killed training", "killed site's job", "killed site", "stopped site"})
"""Of one hospital, which cost nothing while they last: it is waited for, or is back at once."""
DRAWS, ROUNDS, LONGEST_HOURS = 10, 20, 1.0
KEPT = "sessions.json"


def plan_of(number: int, draws: int = DRAWS) -> Rehearsal:
    """The session of this number."""
    moments = (*MOMENTS, *SUM_MOMENTS) if number % 2 else MOMENTS
    return Rehearsal(LONGEST_HOURS, number, ROUNDS, 2.0, draws, moments, KINDS, secure=bool(number % 2))


def session(plan: Rehearsal, folder: Path, report: Callable[[str], None]) -> dict[str, Any]:
    """Rehearse with new kits in a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    description = local_project(read_project(PROJECT), SITES, 8002)
    write_project(description, folder / "project.yml")
    found = rehearse(provision(folder / "project.yml", folder / "kits"), folder / "rehearsal", plan, report)
    kept = {
        name: found[name] for name in ("seed", "faults", "nothing_to_harm", "left_processes", "left_files", "minutes")
    }
    names = ("name", "status", "attempts", "rounds", "missed", "lost_sums", "fault")
    return {**kept, "secure": plan.secure, "runs": [{name: one[name] for name in names} for one in found["runs"]]}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    path = options.workspace / KEPT
    sessions: list[dict[str, Any]] = read_json_object(path)["sessions"] if path.is_file() else []
    draws = 2 if options.quick else DRAWS
    while sum(len(one["faults"]) for one in sessions) < (2 if options.quick else options.draws):
        number = len(sessions)
        say = lambda line, number=number: print(f"{number}: {line}", flush=True)  # noqa: E731
        sessions.append(session(plan_of(number, draws), options.workspace / "session", say))
        write_json(path, {"sessions": sessions})
    return {"sites": len(SITES), "wanted": options.draws, **summarised(sessions)}


def summarised(sessions: list[dict[str, Any]]) -> dict[str, Any]:
    """All faults of the sessions together."""
    costs = [FaultCost(**fault) for one in sessions for fault in one["faults"]]
    runs = [run for one in sessions for run in one["runs"]]
    groups = {"kind": by_fault(costs), "moment": by_fault([_by_moment(cost) for cost in costs])}
    return {
        "draws": len(costs),
        "beyond_one_round": sum(cost.missed > 1 for cost in costs),
        "not_recovered": sum(cost.recovered is None for cost in costs),
        "runs": len(runs),
        "without_a_model": sum(bool(run["fault"]) for run in runs),
        "lost_sums": sum(run["lost_sums"] for run in runs),
        **{f"by_{name}": found for name, found in groups.items()},
        "sessions": sessions,
    }


def _by_moment(cost: FaultCost) -> FaultCost:
    return FaultCost(**{**vars(cost), "kind": cost.moment})


def tables(result: dict[str, Any]) -> str:
    columns = {
        **{"times": "times", "rounds missed, of sites": "missed", "most at once": "most_missed"},
        **{"rounds repeated": "repeated", "recovered": "recovered", "with a usable model": "usable"},
    }
    by = {"fault": result["by_kind"], "moment": result["by_moment"]}
    drawn = [
        table({title: "name", **columns}, ({"name": name, **one} for name, one in found.items()), 0)
        for title, found in by.items()
    ]
    facts = (
        f"{result['draws']} faults in {result['runs']} runs (seeds 0 to {len(result['sessions']) - 1}): "
        f"{result['beyond_one_round']} cost more than one round of one site, {result['not_recovered']} were not recovered "
        f"from, {result['lost_sums']} secure sums were lost, and {result['without_a_model']} runs left no usable model."
    )
    return "\n\n".join([facts, *drawn])


if __name__ == "__main__":
    run(
        __file__,
        measured,
        tables,
        timed=False,
        workspace={"type": Path, "default": Path("runs/random_faults"), "help": "with the sessions so far"},
        draws={"type": int, "default": 300},
    )
