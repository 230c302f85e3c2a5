"""Measure what hospitals that wait for another one cost the server and their lines.

A server and 11 hospitals from startup kits run on this machine, each hospital behind a proxy that counts its bytes. FedAvg
trains on phantoms until all processes of one hospital are stopped (SIGSTOP): its round goes on, and the others, which have
answered, ask for their next task, the rarer the longer they wait. Three short waits are measured soon after the answers,
and a long one after five minutes, in which some of the waiting hospitals are stopped too, in random order, so that a known
number waits. The server's CPU seconds without any are its own; what more it uses is divided among those that wait.

From the two intervals follow the cost of one question and of the rest (signs of life), and from both what is computed for
federations that were not run. Windows last several intervals, so that all have asked equally often.

python -m benchmarks.waiting.run
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.federation import new_federation
from benchmarks.measure import run, table
from benchmarks.rehearsal.federated_run import FEDERATION_SECONDS, MODULES, FederatedRun, free_port
from benchmarks.rehearsal.kit_processes import running_module, told_of
from benchmarks.rehearsal.link import SlowLink
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.kit.read import processes_of
from grandrounds.deployment.local_federation import Federation, start, stop_federation
from grandrounds.deployment.processes import signal_processes
from grandrounds.federation.server.exchange import polling_seconds
from grandrounds.protocol.messages import TRAIN

WAITING, COMPUTED = 10, (30, 100, 1000)
"""Hospitals that wait for one more, and those of the federations that are computed."""
SHARES, SEED = (1.0, 0.5, 0.0), 0
"""Of the hospitals that could wait, those that do in a window of the long wait."""
SHORT_WAITS, LONG_WAIT, SETTLE = 3, 300.0, 8.0
QUESTIONS_SHORT, QUESTIONS_LONG, REPEATS = 3, 2, 2
OPTIONS = {
    **{("controller", "run_name"): "waiting", ("controller", "rounds"): 10_000, ("controller", "min_sites"): 2},
    **{("controller", "grace"): 7200, ("controller", "round_timeout"): 7200, ("controller", "validate_every"): 0},
    **{("controller", "checkpoint_every"): 1000, ("executor", "steps"): 1, ("executor", "batch_size"): 4},
    **{("executor", "device"): "cpu", ("executor", "cpu_threads"): 1},
}
PROCESSES = {"main": MODULES["server"], "job": MODULES["server's job"]}
COUNTED = ("main", "job", "up", "down", "site_cpu")


class Federated:
    """A federation of which one hospital can be stopped, and whose processes and lines are read over windows of time."""

    def __init__(self, federation: Federation, links: dict[str, SlowLink]) -> None:
        self.federation, self._links = federation, links
        *self.others, self.awaited = federation.sites

    def processes(self, sites: Sequence[str]) -> list[int]:
        """Of these sites."""
        return [process for site in sites for process in processes_of(self.federation.kits / site)]

    def window(self, sites: Sequence[str], seconds: float) -> dict[str, Any]:
        """CPU seconds of the server's processes, and bytes and CPU seconds of these sites, in a window of time."""
        began, before = time.monotonic(), self._counted(sites)
        time.sleep(seconds)
        lasted, after = time.monotonic() - began, self._counted(sites)
        found = {"waiting": len(sites), "seconds": lasted, **{name: after[name] - before[name] for name in COUNTED}}
        print(found, flush=True)
        return found

    def begin_to_wait(self, going: FederatedRun) -> float:
        """Stop the awaited hospital and wait until the others have answered; by the clock, when their round has begun."""
        signal_processes(self.processes([self.awaited]), SIGSTOP)
        while True:
            number, begun = len(going.rounds()), time.monotonic()
            while number == len(going.rounds()):
                if self._all_answered(going, number + 1):
                    return begun
                going.wait(0.5)

    def _all_answered(self, going: FederatedRun, number: int) -> bool:
        answers = [e for e in going.events() if e["event"] == "answer" and e.get("round") == number]
        return {e["site"] for e in answers} >= {*self.others}

    def _counted(self, sites: Sequence[str]) -> dict[str, float]:
        server = self.federation.kits / self.federation.server
        cpu = {kind: _cpu(running_module(server, module)) for kind, module in PROCESSES.items()}
        carried = np.sum([(0, 0), *(self._links[site].carried for site in sites)], axis=0).tolist()
        return {**cpu, "up": carried[0], "down": carried[1], "site_cpu": _cpu(self.processes(sites))}


def _cpu(processes: Sequence[int]) -> float:
    return sum(told_of(process, lambda found: sum(found.cpu_times()[:2]), 0.0) for process in processes)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    waiting, long = (3, 40.0) if options.quick else (WAITING, LONG_WAIT)
    sites, port = [f"hospital-{number:02}" for number in range(1, waiting + 2)], free_port()
    links = {site: SlowLink(port, connect=True) for site in sites}
    for link in links.values():
        link.start()
    made = new_federation(options.workspace, sites, port)
    watched = Federated(replace(made, proxies={site: link.address for site, link in links.items()}), links)
    try:
        start(watched.federation, FEDERATION_SECONDS)
        found = windows(watched, long)
    finally:
        signal_processes(watched.processes(sites), SIGCONT)
        stop_federation(watched.federation)
        for link in links.values():
            link.stop()
    return {"seed": SEED, "sites": len(sites), **found, **summarised(len(sites), found)}


def windows(watched: Federated, long: float) -> dict[str, Any]:
    """What was counted: without a job, soon after the answers, and in a long wait."""
    time.sleep(SETTLE)
    idle, short, late, draw = watched.window(watched.federation.sites, 60), [], [], random.Random(SEED)
    going = FederatedRun(watched.federation, load_job("fedavg").with_values(OPTIONS), 1)
    while len(going.rounds()) < 2:
        going.wait(1.0)
    usual = polling_seconds([TRAIN], len(watched.federation.sites))
    for _ in range(SHORT_WAITS):
        begun = watched.begin_to_wait(going)
        short.append({**watched.window(watched.others, QUESTIONS_SHORT * usual), "waited": time.monotonic() - begun})
        signal_processes(watched.processes([watched.awaited]), SIGCONT)
        going.wait(SETTLE)
    begun = watched.begin_to_wait(going)
    going.wait(max(0.0, begun + long - time.monotonic()))
    number = len(going.rounds())
    rare = polling_seconds([TRAIN], len(watched.federation.sites), long)
    for share in (share for _ in range(REPEATS) for share in draw.sample(SHARES, len(SHARES))):
        here = draw.sample(watched.others, round(share * len(watched.others)))
        away = watched.processes([site for site in watched.others if site not in here])
        signal_processes(away, SIGSTOP)
        going.wait(SETTLE)
        late.append({**watched.window(here, QUESTIONS_LONG * rare), "waited": time.monotonic() - begun})
        signal_processes(away, SIGCONT)
        going.wait(SETTLE)
    if len(going.rounds()) != number:
        raise SystemExit("the round has ended: the hospitals did not wait")
    return {"idle": idle, "short": short, "long": late, "intervals": [usual, rare]}


def summarised(sites: int, found: dict[str, Any]) -> dict[str, Any]:
    """Per waiting hospital and second: CPU milliseconds of the server and bytes of the line, and what is computed."""
    own = {kind: mean(one[kind] / one["seconds"] for one in found["long"] if not one["waiting"]) for kind in PROCESSES}
    cases = {"without a job": [found["idle"]], "soon": found["short"], "after five minutes": found["long"]}
    rows = [_each(name, windows, own) for name, windows in cases.items()]
    for row, interval in zip(rows[1:], found["intervals"], strict=True):
        row["interval"] = interval
    costs = {name: _parts(rows[1][name], rows[2][name], found["intervals"]) for name in ("server", "main", "bytes")}
    return {
        "each": rows,
        "costs": costs,
        "computed": [computed(size, when, costs) for size in COMPUTED for when in (0, 300)],
    }


def _each(name: str, windows: Sequence[dict[str, Any]], own: dict[str, float]) -> dict[str, Any]:
    """Of one waiting hospital; without a job the server's own use is not known apart, and is divided too."""
    here = [one for one in windows if one["waiting"]]
    waited = sum(one["waiting"] * one["seconds"] for one in here)
    free = own if name != "without a job" else dict.fromkeys(own, 0.0)
    used = {kind: sum(one[kind] - free[kind] * one["seconds"] for one in here) * 1000 / waited for kind in own}
    sums = {kind: sum(one[kind] for one in here) / waited for kind in ("up", "down", "site_cpu")}
    return {
        "when": name,
        "interval": None,
        "server": round(sum(used.values()), 3),
        "main": round(used["main"], 3),
        "bytes": round(sums["up"] + sums["down"]),
        "up": round(sums["up"]),
        "site": round(1000 * sums["site_cpu"], 2),
    }


def _parts(soon: float, late: float, intervals: Sequence[float]) -> dict[str, float]:
    """Of one question, and of a second without one."""
    question = (soon - late) / (1 / intervals[0] - 1 / intervals[1])
    return {"question": round(question, 3), "second": round(late - question / intervals[1], 3)}


def computed(sites: int, waited: float, costs: dict[str, dict[str, float]]) -> dict[str, Any]:
    """A waiting hospital of a federation of so many, and all of them; milliseconds of CPU and bytes in a second."""
    interval = polling_seconds([TRAIN], sites, waited)
    each = {name: round(cost["second"] + cost["question"] / interval, 3) for name, cost in costs.items()}
    return {"sites": sites, "waited": waited, "interval": interval, **each, "all": round(sites * each["server"])}


def tables(result: dict[str, Any]) -> str:
    columns = {"s between questions": "interval", "server, CPU ms": "server", "of it main process": "main"}
    lines = {**columns, "line, bytes": "bytes"}
    each = table({"a hospital waits": "when", **lines, "hospital, CPU ms": "site"}, result["each"], 2)
    parts = [{"of": name, **cost} for name, cost in result["costs"].items()]
    costs = table({"cost": "of", "one question": "question", "a second of signs of life": "second"}, parts, 2)
    sizes = {"hospitals": "sites", "s waited": "waited", **lines, "server, CPU ms for all": "all"}
    return f"{each}\n\n{costs}\n\n{table(sizes, result['computed'], 2)}"


if __name__ == "__main__":
    workspace = {"type": Path, "default": Path("runs/waiting"), "help": "is emptied first"}
    run(__file__, measured, tables, timed=False, workspace=workspace)
