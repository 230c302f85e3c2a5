"""One round after another on a federation of real processes, some of which are killed now and then.

A server and three hospitals from startup kits run FedPerl on phantoms, each training in a child process. At random
moments a process is killed: mostly a training, now and then a hospital's job or client, the server's job or the server.
The run is submitted again by itself. The result has rounds, attempts, contributions, and each kind of process's memory:
level and growth.

Growth is estimated within the lives of processes: one slope for all processes of a kind, each with a level of its own,
without its first rounds. The heap takes about a hundred rounds to reach its level, longer than a process lives among
kills; a second run without kills measures it.

    python -m benchmarks.soak.run --minutes 30 --every 60
    python -m benchmarks.soak.run --minutes 10 --every 1e9 --warm-up 100 --out benchmarks/soak/undisturbed.json
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import statistics
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import MEBIBYTE, run, table
from benchmarks.processes import resident_bytes, running_module, training_child
from grandrounds.deployment.jobs import Job, load_job, with_options
from grandrounds.deployment.local_federation import Federation, prepare, start, stop
from grandrounds.deployment.submission import submit_and_watch
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.record import EVENTS, read_events

SITES = ("hospital-a", "hospital-b", "hospital-c")
RUN_NAME, MAX_ROUNDS, MAX_ATTEMPTS = "soak", 100_000, 10_000
SAMPLE_SECONDS = 5.0
WARM_UP_ROUNDS = 3
MIN_ROUNDS = 20
"""In the lives of all processes of a kind, for a growth to be reported."""
OPTIONS = (
    *(f"controller.run_name={RUN_NAME}", f"controller.rounds={MAX_ROUNDS}", "controller.min_sites=2"),
    *("controller.grace=20", "controller.round_timeout=120", "controller.warm_up=1", "controller.validate_every=5"),
    *("executor.steps=2", "executor.batch_size=8", "executor.device=cpu", "executor.cpu_threads=1"),
    *("executor.threshold=0.26", "executor.isolation=process"),
)
KINDS = {
    "server": "server_train",
    "server's job": "runner_process",
    "site": "client_train",
    "site's job": "worker_process",
}
TRAINING = "training"
WEIGHTS = {TRAINING: 12, "site's job": 2, "site": 1, "server's job": 1, "server": 1}


@dataclass
class Life:
    """One process: rounds done and its memory, in bytes, at successive moments."""

    kind: str
    samples: list[tuple[int, int]] = field(default_factory=list)

    def settled(self, warm_up: int) -> list[tuple[int, int]]:
        """The samples after its first rounds."""
        return [(number, size) for number, size in self.samples if number >= self.samples[0][0] + warm_up]


def growth(lives: list[Life], warm_up: int = WARM_UP_ROUNDS) -> dict[str, Any]:
    """Mebibytes in a hundred rounds, by least squares with one slope for all processes and a level for each.

    None where all processes together have lived less than ``MIN_ROUNDS`` after their first rounds.
    """
    # One round alone shows no growth.
    settled = [found for found in (life.settled(warm_up) for life in lives) if len({number for number, _ in found}) > 1]
    rounds = sum(samples[-1][0] - samples[0][0] for samples in settled)
    spread = together = 0.0
    for samples in settled:
        number_mean = statistics.fmean(number for number, _ in samples)
        size_mean = statistics.fmean(size for _, size in samples)
        spread += sum((number - number_mean) ** 2 for number, _ in samples)
        together += sum((number - number_mean) * (size - size_mean) for number, size in samples)
    slope = round(together / spread * 100 / MEBIBYTE, 2) if rounds >= MIN_ROUNDS else None
    return {"value": slope, "processes": len(settled), "rounds": rounds}


class Soak:
    """The federation, the run and the record of both."""

    def __init__(self, federation: Federation, seed: int, warm_up: int) -> None:
        self.federation = federation
        self.warm_up = warm_up
        self.killed: Counter[str] = Counter()
        self.lives: dict[tuple[str, int], Life] = {}
        self.messages: list[str] = []
        self._draw = random.Random(seed)

    @property
    def record(self) -> Path:
        """The run's folder at the server."""
        return self.federation.kits / self.federation.server / "grandrounds" / RUN_NAME / "server"

    def rounds(self) -> int:
        """Complete rounds so far."""
        if not (self.record / EVENTS).is_file():
            return 0
        return max((e["round"] for e in read_events(self.record) if e["event"] == "round_end"), default=0)

    def processes(self, kind: str) -> list[int]:
        """Ids of the processes of a kind."""
        if kind == TRAINING:
            return [child for job in self.processes("site's job") if (child := training_child(job))]
        return processes_of_kind(self.federation, kind)

    def sample(self) -> None:
        """Note the memory of every process."""
        number = self.rounds()
        for kind in (*KINDS, TRAINING):
            for process in self.processes(kind):
                if size := resident_bytes(process):  # it may have ended in the meantime
                    self.lives.setdefault((kind, process), Life(kind)).samples.append((number, size))

    def kill(self) -> None:
        """Kill a process of a kind that is drawn, if there is one."""
        kind = self._draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if found := self.processes(kind):
            with suppress(ProcessLookupError):
                os.kill(self._draw.choice(found), signal.SIGKILL)
                self.killed[kind] += 1

    def memory(self) -> dict[str, Any]:
        """Level and growth of each kind of process."""
        kinds: dict[str, list[Life]] = defaultdict(list)
        for life in self.lives.values():
            kinds[life.kind].append(life)
        found: dict[str, dict[str, Any]] = {}
        for kind, lives in kinds.items():
            sizes = [size / MEBIBYTE for life in lives for _, size in life.samples]
            found[kind] = {
                "processes": len(lives),
                "median_mib": round(statistics.median(sizes), 1),
                "largest_mib": round(max(sizes), 1),
            }
            if kind in KINDS:  # a training lasts no longer than its task
                found[kind]["growth_mib_per_100_rounds"] = growth(lives, self.warm_up)
        return found


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Run, kill and stop."""
    minutes, every = (2.0, 30.0) if options.quick else (options.minutes, options.every)
    shutil.rmtree(options.workspace, ignore_errors=True)
    federation = prepare(options.workspace, SITES, free_port())
    soak = Soak(federation, options.seed, options.warm_up)
    try:
        start(federation)
        seconds = endure(soak, with_options(load_job("fedperl"), OPTIONS), minutes * 60, every)
    finally:
        stop(federation)
    return {**outcome(soak), "warm_up": options.warm_up, "minutes": round(seconds / 60, 1)}


def endure(soak: Soak, job: Job, seconds: float, every: float) -> float:
    """Let the run go on for so long, killing now and then; the seconds that it was watched."""
    kit, results = soak.federation.kit(soak.federation.researcher), soak.federation.folder / "results"

    def submit() -> None:
        try:
            submit_and_watch(kit, job, results, soak.messages.append, MAX_ATTEMPTS, patience=600.0)
        except GrandRoundsError as error:  # at the end the federation is stopped under it
            soak.messages.append(str(error))

    run = threading.Thread(target=submit, daemon=True)
    run.start()
    started = time.monotonic()
    draw = random.Random(0)
    following = started + every
    while (now := time.monotonic()) - started < seconds:
        if not run.is_alive():
            raise GrandRoundsError(f"the run has ended before its time: {'; '.join(soak.messages[-3:])}")
        soak.sample()
        if now >= following and soak.rounds():
            soak.kill()
            following = now + draw.uniform(0.5, 1.5) * every
        time.sleep(SAMPLE_SECONDS)
    return time.monotonic() - started


def outcome(soak: Soak) -> dict[str, Any]:
    """What became of the run."""
    ends = [event for event in read_events(soak.record) if event["event"] == "round_end"]
    given = Counter(site for event in ends for site in event["answered"])
    return {
        "rounds": soak.rounds(),
        "attempts": sum(line.startswith("submitted as") for line in soak.messages),
        "killed": dict(soak.killed),
        "contributions": {site: given[site] for site in SITES},
        "rounds_with_a_site_dropped": sum(bool(event["dropped"]) for event in ends),
        "median_round_seconds": round(statistics.median([event["round_seconds"] for event in ends]), 2)
        if ends
        else None,
        "memory": soak.memory(),
    }


def processes_of_kind(federation: Federation, kind: str) -> list[int]:
    """Ids of the federation's processes of a kind."""
    names = [federation.server] if kind.startswith("server") else federation.sites
    return [process for name in names for process in running_module(federation.kits / name, KINDS[kind])]


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def tables(result: dict[str, Any]) -> str:
    cases = [{"kind": kind, **found} for kind, found in result["memory"].items()]
    for case in cases:
        case["growth"] = case.get("growth_mib_per_100_rounds", {}).get("value")
    columns = {"process": "kind", "number": "processes", "median MiB": "median_mib", "largest MiB": "largest_mib"}
    killed = ", ".join(f"{kind} {count}" for kind, count in result["killed"].items()) or "nothing"
    facts = {
        "minutes": result["minutes"],
        "rounds": result["rounds"],
        "attempts": result["attempts"],
        "rounds with a site dropped": result["rounds_with_a_site_dropped"],
        "s per round (median)": result["median_round_seconds"],
        "killed": killed,
    }
    memory = table({**columns, "growth, MiB in 100 rounds": "growth"}, cases, 1)
    return "\n\n".join(["\n".join(f"* {name}: {value}" for name, value in facts.items()), memory])


if __name__ == "__main__":
    run(
        __file__,
        measured,
        tables,
        workspace={"type": Path, "default": Path("runs/soak"), "help": "is emptied first"},
        minutes={"type": float, "default": 30.0},
        every={"type": float, "default": 30.0, "help": "seconds between kills, on average"},
        seed={"type": int, "default": 1},
        warm_up={"type": int, "default": WARM_UP_ROUNDS, "help": "first rounds of a process that are no growth"},
    )
