"""Faults that a soak makes at random moments: each begins at once, and those that last end after a while."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.federation import FederatedRun
from benchmarks.processes import training_child
from grandrounds.data.partition.phantom_site import DATASET_NAME
from grandrounds.data.site import CONFIG_NAME
from grandrounds.deployment.kit.read import processes_of
from grandrounds.privacy.gate.policy import POLICY_FILE

Undo = Callable[[], None]
Begin = Callable[[FederatedRun, random.Random], Undo | None]
TRAINING = "training"
SECONDS = 60.0
"""How long a fault that does not kill lasts."""
FILE_BYTES = 1000
"""No file of a site grows beyond this while its disk is full."""


def processes(run: FederatedRun, kind: str) -> list[int]:
    if kind == TRAINING:
        return [child for job in run.processes("site's job") if (child := training_child(job))]
    return run.processes(kind)


def _kill(kind: str, run: FederatedRun, draw: random.Random) -> Undo | None:
    if not (found := processes(run, kind)):
        return None
    _signal([draw.choice(found)], signal.SIGKILL)
    return _nothing


def _stop_site(run: FederatedRun, draw: random.Random) -> Undo:
    """All processes of a hospital stand still, as on a machine that sleeps."""
    stopped = processes_of(run.federation.kits / draw.choice(run.federation.sites))
    _signal(stopped, signal.SIGSTOP)
    return partial(_signal, stopped, signal.SIGCONT)


def _fill_disk(run: FederatedRun, draw: random.Random) -> Undo | None:
    if not (found := run.processes("site's job")):
        return None
    process = draw.choice(found)
    before = resource.prlimit(process, resource.RLIMIT_FSIZE)
    _limit(process, (FILE_BYTES, before[1]))
    return partial(_limit, process, before)


def _damage_policy(run: FederatedRun, draw: random.Random) -> Undo:
    """A class that does not load; the hospital refuses the jobs that begin meanwhile."""
    path = _local(run, draw) / POLICY_FILE
    before = path.read_text()
    content = json.loads(before)
    content["scopes"][0]["task_result_filters"].append({"path": "missing.Filter", "args": {}})
    path.write_text(json.dumps(content))
    return partial(_write, path, before)


def _remove_data(run: FederatedRun, draw: random.Random) -> Undo | None:
    path = _local(run, draw) / CONFIG_NAME
    if path.exists():
        return None
    gone = {"datasets": {DATASET_NAME: {"manifest": "gone.csv", "root": "gone"}}}
    path.write_text(json.dumps(gone))
    return path.unlink


class Fault(NamedTuple):
    """How often a fault is drawn, and what begins it; it returns what ends it, or None if there is nothing to harm."""

    weight: int
    begin: Begin


FAULTS = {
    "killed training": Fault(8, partial(_kill, TRAINING)),
    "killed site's job": Fault(2, partial(_kill, "site's job")),
    "killed site": Fault(1, partial(_kill, "site")),
    "killed server's job": Fault(2, partial(_kill, "server's job")),
    "killed server": Fault(1, partial(_kill, "server")),
    "stopped site": Fault(2, _stop_site),
    "full disk at a site": Fault(2, _fill_disk),
    "damaged policy": Fault(2, _damage_policy),
    "removed data": Fault(2, _remove_data),
}


class RandomFaults:
    """Begins faults at random moments and ends them after ``SECONDS``.

    A fault begins only when a round was completed since the last one began: a job may take minutes to start on a machine
    with other work.

    Attributes:
        begun: how many of each kind.
    """

    def __init__(self, run: FederatedRun, every: float, now: float) -> None:
        self.begun = Counter[str]()
        self._run, self._every = run, every
        self._draw = random.Random(0)
        self._next, self._rounds = now + every, 0
        self._lasting: list[tuple[float, Undo]] = []

    def look(self, now: float, rounds: int) -> None:
        """Begin a fault if it is time, and end those that have lasted long enough; ``rounds`` are complete."""
        self._end([undo for end, undo in self._lasting if end <= now])
        self._lasting = [(end, undo) for end, undo in self._lasting if end > now]
        if now < self._next or rounds == self._rounds:
            return
        name = self._draw.choices(list(FAULTS), [fault.weight for fault in FAULTS.values()])[0]
        if undo := FAULTS[name].begin(self._run, self._draw):
            self.begun[name] += 1
            self._lasting.append((now + SECONDS, undo))
            self._rounds = rounds
        self._next = now + self._draw.uniform(0.5, 1.5) * self._every

    def end(self) -> None:
        """End all that last."""
        self._end([undo for _, undo in self._lasting])
        self._lasting = []

    def _end(self, lasting: list[Undo]) -> None:
        for undo in lasting:
            undo()


def _local(run: FederatedRun, draw: random.Random) -> Path:
    return run.federation.kits / draw.choice(run.federation.sites) / "local"


def _limit(process: int, limits: tuple[int, int]) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        resource.prlimit(process, resource.RLIMIT_FSIZE, limits)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _signal(found: list[int], number: signal.Signals) -> None:
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _nothing() -> None:
    """A killed process comes back by itself."""
