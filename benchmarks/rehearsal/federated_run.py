"""A run of a federation of startup kits on this machine: its rounds and its processes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.rehearsal.kit_processes import running_module, training_child
from grandrounds.deployment.jobs import Job
from grandrounds.deployment.local_federation import Federation, start, stop_federation
from grandrounds.deployment.submission import Outcome, submit_and_watch
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.record import EVENTS, ROUND_END, read_events
from grandrounds.privacy.gate.audit import AUDIT_NAME
from grandrounds.protocol.paths import PRIVACY_FOLDER

ROUND_START = "round_start"
FEDERATION_SECONDS = 600.0
"""Within which server and sites are up, on a machine with other work."""
MODULES = {
    "server": "server_train", "server's job": "runner_process", "site": "client_train", "site's job": "worker_process",
}  # fmt: skip
"""By kind of process, the module of FLARE that it runs."""
TRAINING = "training"
"""The kind of the process in which a site's job trains."""
MOMENTS = ("fetching", TRAINING, "booking", "sending", "arrived")
"""Of a site in a round: its task is there; it has it; it has booked; its gate lets the answer out; that has arrived."""
SUM_MOMENTS = ("contributors", "unmasking", "shares")
"""Of a site in a secure sum: it has the first, second or third task of it after training.

The shares of the next sum come with the unmasking, and alone only where sites have changed.
"""


class CompleteRound(NamedTuple):
    """A round of a run's record: its number, the sites that have answered, and which beginning of a round it had."""

    number: int
    answered: frozenset[str]
    beginning: int


class RoundsSeen(NamedTuple):
    """The complete rounds of a run, and how many have begun so far, those included that were begun again."""

    rounds: Sequence[CompleteRound] = ()
    begun: int = 0


def free_port() -> int:
    """A port at which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


class FederatedRun:
    """A submitted run.

    Attributes:
        messages: what the submission reports.
        record: the run's folder at the server.
        outcome: how it has ended; None while it goes on, or if the submission has failed.
    """

    def __init__(self, federation: Federation, job: Job, attempts: int) -> None:
        self.federation = federation
        self.messages: list[str] = []
        self.outcome: Outcome | None = None
        self.record = (
            federation.kits / federation.server / "grandrounds" / job.options("controller")["run_name"] / "server"
        )
        self._thread = threading.Thread(target=self._submit, args=(job, attempts), daemon=True)
        self._thread.start()

    def _submit(self, job: Job, attempts: int) -> None:
        kit, results = self.federation.kit(self.federation.researcher), self.federation.folder / "results"
        try:
            self.outcome = submit_and_watch(
                kit, job, results, self.messages.append, attempts, patience=FEDERATION_SECONDS
            )
        except GrandRoundsError as error:  # the federation is stopped while it waits
            self.messages.append(str(error))

    def is_active(self, seconds: float) -> bool:
        """Wait so long, or until the run has ended."""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait.

        Raises:
            GrandRoundsError: if the run has ended.
        """
        if not self.is_active(seconds):
            raise GrandRoundsError(f"the run has ended too early: {'; '.join(self.messages[-3:])}")

    def events(self) -> list[dict[str, Any]]:
        """The record so far."""
        return read_events(self.record) if (self.record / EVENTS).is_file() else []

    def rounds(self) -> list[dict[str, Any]]:
        """The complete rounds so far."""
        return [event for event in self.events() if event["event"] == ROUND_END]

    def progress(self) -> RoundsSeen:
        """The rounds in the order in which they were completed, also those that a resumed run has done again."""
        try:
            lines = (self.record / EVENTS).read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        rounds, begun = list[CompleteRound](), 0
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:  # half a line of a crash
                continue
            begun += event["event"] == ROUND_START
            if event["event"] == ROUND_END:
                rounds.append(CompleteRound(event["round"], frozenset(event["answered"]), begun))
        return RoundsSeen(rounds, begun)

    def passed(self, moment: str, site: str) -> int:
        """How often a site has come to one of the moments, in this run or before."""
        kit, events = self.federation.kits / site, self.record / EVENTS
        if moment in ("fetching", "arrived"):
            kind = ROUND_START if moment == "fetching" else "answer"
            found = (line for line in _lines(events) if f'"event": "{kind}"' in line)
            return sum(moment == "fetching" or f'"site": "{site}"' in line for line in found)
        if moment in ("booking", "sending"):
            name, word = ("ledger.jsonl", "") if moment == "booking" else (AUDIT_NAME, '"released"')
            return sum(word in line for line in _lines(kit / "local" / PRIVACY_FOLDER / name))
        tasks = [line for log in kit.glob("*/log.txt") for line in _lines(log) if "got task assignment: name=" in line]
        if moment == TRAINING:
            return sum("name=train" in line for line in tasks)
        number = 1 + SUM_MOMENTS.index(moment)
        return sum(_is_sum(tasks, place, number) for place in range(len(tasks)))

    def processes(self, kind: str, site: str | None = None) -> list[int]:
        """Ids of the federation's processes of a kind, or of those of one site."""
        if kind == TRAINING:
            return [child for job in self.processes("site's job", site) if (child := training_child(job))]
        sites = self.federation.sites if site is None else [site]
        names = [self.federation.server] if kind.startswith("server") else sites
        return [process for name in names for process in running_module(self.federation.kits / name, MODULES[kind])]


@contextmanager
def started_run(federation: Federation, job: Job, attempts: int = 1) -> Iterator[FederatedRun]:
    """A run of a federation that is up inside the block."""
    try:
        start(federation, FEDERATION_SECONDS)
        yield FederatedRun(federation, job, attempts)
    finally:
        stop_federation(federation)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []


def _is_sum(tasks: Sequence[str], place: int, number: int) -> bool:
    """Whether this task is the one of that number about a sum since the last training."""
    since = [place - back for back in range(number) if "name=sum" in tasks[place - back]]
    return len(since) == number and place >= number and "name=train" in tasks[place - number]
