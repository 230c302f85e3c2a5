"""The faults of a rehearsal: what each does, and in which order they come."""

from __future__ import annotations

import json
import random
import resource
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from benchmarks.rehearsal.federated_run import TRAINING, FederatedRun
from benchmarks.rehearsal.link import Quality, SlowLink
from benchmarks.rehearsal.renewing import renew_and_restart
from grandrounds.data.site import CONFIG_NAME, PHANTOM_NAME
from grandrounds.deployment.kit.read import processes_of
from grandrounds.deployment.processes import signal_processes
from grandrounds.privacy.gate.policy import POLICY_FILE

RENEWAL = "renewed certificate"
SLOW = Quality(megabits=1.2, latency=200)
"""150 kB/s."""
FULL_DISK_BYTES = 1000
"""No file of a site grows beyond this while its disk is full."""
DAMAGED_BYTES = slice(9000, 13096)
"""Of a checkpoint, 4 KiB that change on the disk."""


@dataclass(frozen=True)
class FaultStage:
    """A run, the links through which sites reach its server, by site, and the key of the kits' authority if it is here."""

    run: FederatedRun
    links: Mapping[str, SlowLink] = field(default_factory=dict)
    authority: RSAPrivateKey | None = None


Undo = Callable[[], None]
Begin = Callable[[FaultStage, str], Undo | None]


class FaultKind(NamedTuple):
    """What begins a fault at a site, and how many seconds it lasts.

    ``begin`` returns what ends the fault, or None if there is nothing to harm now.
    """

    begin: Begin
    shortest: float = 0.0
    longest: float = 0.0


class DrawnFault(NamedTuple):
    """A fault that will come: its kind, its site, for how long, the pause before it, and the moment that it waits for."""

    kind: str
    site: str
    seconds: float
    pause: float
    moment: str = ""


def drawn_faults(
    seed: int,
    sites: Sequence[str],
    every: float,
    kinds: Collection[str] | None = None,
    moments: Sequence[str] = (),
) -> Iterator[DrawnFault]:
    """Faults without end: every kind once in random order, then every kind again.

    Args:
        seed: the same seed gives the same faults.
        sites: of which one is drawn for each fault; faults of the server have none to choose, and are drawn alike.
        every: mean seconds of the pauses.
        kinds: some of ``FAULT_KINDS``; all if None.
        moments: some of those of a run, of which one is drawn for each fault; without any it comes when the pause is over.

    Example:
        >>> faults = drawn_faults(0, ["a", "b"], 20, ["killed site", "cut connection"])
        >>> sorted(next(faults).kind for _ in range(2))
        ['cut connection', 'killed site']
    """
    draw, known = random.Random(seed), list(FAULT_KINDS if kinds is None else kinds)
    while True:
        for kind in draw.sample(known, len(known)):
            seconds = draw.uniform(FAULT_KINDS[kind].shortest, FAULT_KINDS[kind].longest)
            site, pause = draw.choice(list(sites)), draw.uniform(0.5, 1.5) * every
            yield DrawnFault(kind, site, seconds, pause, draw.choice(moments) if moments else "")


def _kill(kind: str, stage: FaultStage, site: str) -> Undo | None:
    if not (found := stage.run.processes(kind, site)):
        return None
    signal_processes(found[:1], signal.SIGKILL)
    return _nothing


def _cut(stage: FaultStage, site: str) -> Undo:
    stage.links[site].cut()
    return stage.links[site].mend


def _slow(stage: FaultStage, site: str) -> Undo:
    stage.links[site].set(SLOW)
    return partial(stage.links[site].set, Quality())


def _stop_site(stage: FaultStage, site: str) -> Undo:
    """All processes of a hospital stand still, as on a machine that sleeps."""
    stopped = processes_of(stage.run.federation.kits / site)
    signal_processes(stopped, signal.SIGSTOP)
    return partial(signal_processes, stopped, signal.SIGCONT)


def _fill_disk(stage: FaultStage, site: str) -> Undo | None:
    if not (found := stage.run.processes("site's job", site)):
        return None
    before = resource.prlimit(found[0], resource.RLIMIT_FSIZE)
    _limit(found[0], (FULL_DISK_BYTES, before[1]))
    return partial(_limit, found[0], before)


def _damage_checkpoint(stage: FaultStage, site: str) -> Undo | None:
    """The newest checkpoint changes on the disk while the server's job is away."""
    kept = sorted(stage.run.record.glob("round_*.pt"))
    if len(kept) < 2 or _kill("server's job", stage, site) is None:
        return None
    newest = max(stage.run.record.glob("round_*.pt"))
    whole = bytearray(newest.read_bytes())
    whole[DAMAGED_BYTES] = bytes(value ^ 0xFF for value in whole[DAMAGED_BYTES])
    newest.write_bytes(whole)
    return _nothing


def _damage_policy(stage: FaultStage, site: str) -> Undo:
    """A class that does not load; the hospital refuses the jobs that begin meanwhile."""
    path = _local(stage, site) / POLICY_FILE
    before = path.read_text()
    content = json.loads(before)
    content["scopes"][0].setdefault("task_result_filters", []).append({"path": "missing.Filter", "args": {}})
    path.write_text(json.dumps(content))
    return partial(_put_back, path, before)


def _remove_data(stage: FaultStage, site: str) -> Undo | None:
    path = _local(stage, site) / CONFIG_NAME
    if path.exists():
        return None
    path.write_text(json.dumps({"datasets": {PHANTOM_NAME: {"manifest": "gone.csv", "root": "gone"}}}))
    return path.unlink


def _renew(stage: FaultStage, site: str) -> Undo | None:
    if stage.authority is None:
        return None
    renew_and_restart(stage.run.federation, site, stage.authority)
    return _nothing


FAULT_KINDS: Mapping[str, FaultKind] = {
    "cut connection": FaultKind(_cut, 15, 60),
    "slow link": FaultKind(_slow, 15, 60),
    "killed training": FaultKind(partial(_kill, TRAINING)),
    "killed site's job": FaultKind(partial(_kill, "site's job")),
    "killed site": FaultKind(partial(_kill, "site")),
    "stopped site": FaultKind(_stop_site, 15, 60),
    "full disk at a site": FaultKind(_fill_disk, 15, 60),
    "damaged policy": FaultKind(_damage_policy, 15, 60),
    "removed data": FaultKind(_remove_data, 15, 60),
    "killed server's job": FaultKind(partial(_kill, "server's job")),
    "killed server": FaultKind(partial(_kill, "server")),
    "damaged checkpoint": FaultKind(_damage_checkpoint),
    RENEWAL: FaultKind(_renew),
}
"""FLARE's start script starts a site or a server again that was killed."""
RENEWAL_FAULTS = frozenset({RENEWAL})
"""Kinds that need the key of the kits' authority."""
LINK_FAULTS = frozenset({"cut connection", "slow link"})
"""Kinds that need the links of a stage."""


def _local(stage: FaultStage, site: str) -> Path:
    return stage.run.federation.kits / site / "local"


def _limit(process: int, limits: tuple[int, int]) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        resource.prlimit(process, resource.RLIMIT_FSIZE, limits)


def _put_back(path: Path, text: str) -> None:
    path.write_text(text)


def _nothing() -> None:
    """A killed process comes back by itself."""
