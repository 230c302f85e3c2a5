"""A run of a federation of startup kits on this machine: its rounds and its processes."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.processes import running_module
from grandrounds.deployment.jobs import Job
from grandrounds.deployment.local_federation import Federation, prepare, start, stop_federation
from grandrounds.deployment.submission import submit_and_watch
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.record import EVENTS, read_events

START_SECONDS = 600.0
KINDS = {
    "server": "server_train", "server's job": "runner_process", "site": "client_train", "site's job": "worker_process",
}  # fmt: skip
"""By kind of process, the module of FLARE that it runs."""


def new_federation(folder: Path, sites: Sequence[str], port: int = 0) -> Federation:
    """Empty a folder and make the kits of a federation in it; without a port a free one is taken."""
    shutil.rmtree(folder, ignore_errors=True)
    return prepare(folder, sites, port or free_port())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


class FederatedRun:
    """A submitted run.

    Attributes:
        messages: what the submission reports.
        record: the run's folder at the server.
    """

    def __init__(self, federation: Federation, job: Job, attempts: int) -> None:
        self.federation = federation
        self.messages: list[str] = []
        self.record = (
            federation.kits / federation.server / "grandrounds" / job.options("controller")["run_name"] / "server"
        )
        self._thread = threading.Thread(target=self._submit, args=(job, attempts), daemon=True)
        self._thread.start()

    def _submit(self, job: Job, attempts: int) -> None:
        kit, results = self.federation.kit(self.federation.researcher), self.federation.folder / "results"
        try:
            submit_and_watch(kit, job, results, self.messages.append, attempts, patience=START_SECONDS)
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
        return [event for event in self.events() if event["event"] == "round_end"]

    def processes(self, kind: str) -> list[int]:
        """Ids of the federation's processes of a kind."""
        names = [self.federation.server] if kind.startswith("server") else self.federation.sites
        return [process for name in names for process in running_module(self.federation.kits / name, KINDS[kind])]


@contextmanager
def started_run(federation: Federation, job: Job, attempts: int = 1) -> Iterator[FederatedRun]:
    try:
        start(federation, START_SECONDS)
        yield FederatedRun(federation, job, attempts)
    finally:
        stop_federation(federation)
