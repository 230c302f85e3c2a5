"""A hospital behind a slow line: what a round takes, and what the deadline does.

A server and three hospitals from startup kits train ``mobilenetv2`` (9 MB a model, each way) on phantoms, one step a
round. One hospital reaches the server through a proxy (``link.py``), whose bandwidth, latency and losses change while the
run goes on. Its kit names the proxy's port; that file is not signed, and the certificate is of a host and not of a port.

Once two hospitals have answered, the third has ``controller.grace`` seconds. When it is late the round ends without it,
and it is asked again after pauses of one, two, four rounds. Reported are the seconds of rounds in which it was asked (the
first after a change is left out), in how many it answered in time, and the seconds of those in which it paused.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.measure import run, table
from benchmarks.soak.run import free_port
from benchmarks.wire.link import Quality, SlowLink
from grandrounds.deployment.jobs import load_job, with_options
from grandrounds.deployment.local_federation import Federation, prepare, start, stop
from grandrounds.deployment.submission import submit_and_watch
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.record import EVENTS, read_events
from grandrounds.files import read_json_object, write_json

SITES, SLOW = ("hospital-a", "hospital-b", "hospital-c"), "hospital-c"
RUN_NAME, GRACE = "slow_link", 20
OPTIONS = (
    *(
        f"controller.run_name={RUN_NAME}",
        "controller.rounds=10000",
        "controller.min_sites=2",
        f"controller.grace={GRACE}",
    ),
    *("controller.validate_every=0", "controller.checkpoint_every=1000", "problem.backbone=mobilenetv2"),
    *("executor.steps=1", "executor.batch_size=4", "executor.device=cpu", "executor.cpu_threads=1"),
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
START_SECONDS = 600.0
LONGEST = 240.0
"""Seconds that are waited for the rounds of one quality."""


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Run and change the line."""
    shutil.rmtree(options.workspace, ignore_errors=True)
    port = free_port()
    federation = prepare(options.workspace, SITES, port)
    link = SlowLink(port)
    link.start()
    reach_through(federation, SLOW, link.port)
    chosen = dict(list(QUALITIES.items())[:2]) if options.quick else QUALITIES
    try:
        start(federation, START_SECONDS)
        cases = watch(federation, link, chosen, 2 if options.quick else ROUNDS, options.precision)
    finally:
        stop(federation)
        link.stop()
    return {"grace": GRACE, "precision": options.precision, "cases": cases}


def reach_through(federation: Federation, site: str, port: int) -> None:
    """Let a site look for the server at another port."""
    path = federation.kits / site / "startup" / "fed_client.json"
    content = read_json_object(path)
    service = content["servers"][0]["service"]
    service["target"] = f"{service['target'].rpartition(':')[0]}:{port}"
    write_json(path, content)


def watch(
    federation: Federation, link: SlowLink, qualities: Mapping[str, Quality], rounds: int, precision: str
) -> list[dict[str, Any]]:
    """Submit a run, and look at so many rounds of each quality in which the slow site is asked."""
    job = with_options(load_job("fedavg"), [*OPTIONS, f"controller.update_precision={precision}"])
    messages: list[str] = []

    def submit() -> None:
        with suppress(GrandRoundsError):  # at the end the federation is stopped under it
            submit_and_watch(federation.kit(federation.researcher), job, federation.folder / "results", messages.append)

    running = threading.Thread(target=submit, daemon=True)
    running.start()
    record = federation.kits / federation.server / "grandrounds" / RUN_NAME / "server"
    while not ends(record):
        if not running.is_alive():
            raise GrandRoundsError(f"the run has ended before its time: {'; '.join(messages[-3:])}")
        time.sleep(1.0)
    cases = []
    for name, quality in qualities.items():
        link.set(quality)
        first, carried, deadline = len(ends(record)) + 1, link.carried, time.monotonic() + LONGEST
        while True:
            seen = ends(record)[first:]
            if sum(SLOW in end["asked"] for end in seen) >= rounds or time.monotonic() > deadline:
                break
            time.sleep(1.0)
        moved = [after - before for before, after in zip(carried, link.carried, strict=True)]
        cases.append(outcome(name, quality, seen, moved))
        print(json.dumps(cases[-1]), flush=True)
    return cases


def ends(record: Path) -> list[dict[str, Any]]:
    """The rounds so far."""
    events = read_events(record) if (record / EVENTS).is_file() else []
    return [event for event in events if event["event"] == "round_end"]


def outcome(name: str, quality: Quality, seen: list[dict[str, Any]], moved: list[int]) -> dict[str, Any]:
    """What became of the rounds of one quality."""
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
        "mib_to_server": round(moved[0] / 2**20, 1),
        "mib_to_site": round(moved[1] / 2**20, 1),
    }


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 2) if values else None


def tables(result: dict[str, Any]) -> str:
    cases = [{**case, "kept": f"{case['in_time']} of {case['asked']}"} for case in result["cases"]]
    columns = {"line": "line", "s per round": "median_seconds", "in time": "kept"}
    return table({**columns, "s per round without it": "median_seconds_paused", "such rounds": "paused"}, cases, 2)


if __name__ == "__main__":
    run(
        __file__,
        measured,
        tables,
        workspace={"type": Path, "default": Path("runs/slow_link"), "help": "is emptied first"},
        precision={"default": "float32", "help": "of the updates"},
    )
