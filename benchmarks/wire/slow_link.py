"""Measure rounds with one hospital behind a slow link, and the effect of the deadline.

A server and three hospitals from startup kits train ``mobilenetv2`` (9 MB per model and direction) on phantoms, one step
per round. One hospital reaches the server through a proxy of the rehearsal, whose bandwidth, latency and losses change
during the run. Its kit names the proxy's port; that file is not signed, and the certificate is for a host and not for a
port.

Once two hospitals have answered, the third has ``controller.grace`` seconds. If it is late, the round ends without it, and
it is asked again in the next one, then after pauses of one, two and four rounds. The result has the seconds of rounds in
which it was asked (the first round after a change is left out), the number of those that it answered in time, and the
seconds of the other rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.federation import new_federation
from benchmarks.measure import MEBIBYTE, run, table
from benchmarks.rehearsal.federated_run import FederatedRun, free_port, started_run
from benchmarks.rehearsal.link import Quality, SlowLink
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.local_federation import Federation
from grandrounds.deployment.presets import with_options
from grandrounds.files import read_json_object, write_json

SITES, SLOW = ("hospital-a", "hospital-b", "hospital-c"), "hospital-c"
GRACE = 20
OPTIONS = (
    *("controller.run_name=slow_link", "controller.rounds=10000", "controller.min_sites=2"),
    *(f"controller.grace={GRACE}", "controller.validate_every=0", "controller.checkpoint_every=1000"),
    *("problem.backbone=mobilenetv2", "executor.steps=1", "executor.batch_size=4"),
    *("executor.device=cpu", "executor.cpu_threads=1"),
)
QUALITIES: Mapping[str, Quality] = {
    "none": Quality(),
    "100 Mbit/s, 10 ms": Quality(100, 10),
    "25 Mbit/s, 20 ms": Quality(25, 20),
    "25 Mbit/s, 20 ms, 0.1 % lost": Quality(25, 20, 0.001),
    "25 Mbit/s, 200 ms": Quality(25, 200),
    "2.5 Mbit/s, 20 ms": Quality(2.5, 20),
    "none again": Quality(),
}
ROUNDS = 4
LONGEST = 240.0
"""Maximum seconds of waiting for the rounds of one quality."""


def measured(options: argparse.Namespace) -> dict[str, Any]:
    qualities, rounds = (dict(list(QUALITIES.items())[:2]), 2) if options.quick else (QUALITIES, ROUNDS)
    port = free_port()
    federation, link = new_federation(options.workspace, SITES, port), SlowLink(port)
    link.start()
    reach_through(federation, SLOW, link.port)
    with started_run(federation, with_options(load_job("fedavg"), OPTIONS)) as found:
        while not found.rounds():
            found.wait(1.0)
        cases = [watched(found, link, name, quality, rounds) for name, quality in qualities.items()]
    link.stop()
    return {"grace": GRACE, "cases": cases}


def reach_through(federation: Federation, site: str, port: int) -> None:
    path = federation.kits / site / "startup" / "fed_client.json"
    content = read_json_object(path)
    service = content["servers"][0]["service"]
    service["target"] = f"{service['target'].rpartition(':')[0]}:{port}"
    write_json(path, content)


def watched(found: FederatedRun, link: SlowLink, name: str, quality: Quality, rounds: int) -> dict[str, Any]:
    link.set(quality)
    first, carried, deadline = len(found.rounds()) + 1, link.carried, time.monotonic() + LONGEST
    while sum(SLOW in end["asked"] for end in found.rounds()[first:]) < rounds and time.monotonic() < deadline:
        found.wait(1.0)
    moved = [after - before for before, after in zip(carried, link.carried, strict=True)]
    case = outcome(name, quality, found.rounds()[first:], moved)
    print(json.dumps(case), flush=True)
    return case


def outcome(name: str, quality: Quality, seen: list[dict[str, Any]], moved: list[int]) -> dict[str, Any]:
    asked = [end for end in seen if SLOW in end["asked"]]
    paused = [end["round_seconds"] for end in seen if SLOW not in end["asked"]]
    return {
        "line": name,
        "megabits": quality.megabits,
        "latency_ms": quality.latency,
        "loss": quality.loss,
        "asked": len(asked),
        "in_time": sum(SLOW in end["answered"] for end in asked),
        "median_seconds": _median([end["round_seconds"] for end in asked]),
        "seconds": [end["round_seconds"] for end in asked],
        "paused": len(paused),
        "median_seconds_paused": _median(paused),
        "reasons": sorted({end["dropped"][SLOW] for end in asked if SLOW in end["dropped"]}),
        "others_dropped": sum(len(end["dropped"].keys() - {SLOW}) for end in seen),
        "mib_to_server": round(moved[0] / MEBIBYTE, 1),
        "mib_to_site": round(moved[1] / MEBIBYTE, 1),
    }


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 2) if values else None


def tables(result: dict[str, Any]) -> str:
    cases = [{**case, "kept": f"{case['in_time']} of {case['asked']}"} for case in result["cases"]]
    columns = {"line": "line", "s per round": "median_seconds", "in time": "kept"}
    return table({**columns, "s per round without it": "median_seconds_paused", "such rounds": "paused"}, cases, 2)


if __name__ == "__main__":
    workspace = {"type": Path, "default": Path("runs/slow_link"), "help": "is emptied first"}
    run(__file__, measured, tables, workspace=workspace)
