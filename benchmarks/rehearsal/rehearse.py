"""A rehearsal: runs of a consortium's kits on this machine, one after another, while faults come at random moments."""

from __future__ import annotations

import math
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from benchmarks.rehearsal.copies import copy_kits, kits_in, state_of
from benchmarks.rehearsal.faults import FAULT_KINDS, RENEWAL_FAULTS, FaultStage, drawn_faults
from benchmarks.rehearsal.federated_run import FEDERATION_SECONDS, FederatedRun, free_port
from benchmarks.rehearsal.kit_processes import living_in
from benchmarks.rehearsal.link import SlowLink
from benchmarks.rehearsal.outcome import (
    RehearsedRun,
    by_fault,
    differences,
    drawn_test_images,
    rehearsed_run,
)
from benchmarks.rehearsal.renewing import authority_key
from benchmarks.rehearsal.watching import FaultWatch
from grandrounds.deployment.jobs import Job, Values, load_job
from grandrounds.deployment.kit.shipped import OPEN, SUMS
from grandrounds.deployment.local_federation import HOME, TEMPORARY_FILES, Federation, start, stop_federation
from grandrounds.deployment.processes import await_end, signal_processes, variables_set
from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.external import LabelledImages
from grandrounds.federation.proxy import PROXY_VARIABLE
from grandrounds.federation.server.record import versions
from grandrounds.federation.server.sums import SUM_EVENT
from grandrounds.files import write_json

REHEARSAL, TEST_IMAGES = "rehearsal.json", "images"
UNDISTURBED_ATTEMPTS, REHEARSAL_ATTEMPTS = 2, 50
REHEARSAL_ROUNDS = 12
WATCH_SECONDS, MOMENT_SECONDS = 0.5, 0.1
LEFT_SECONDS = 20.0
"""In which what a federation has started ends after it."""
REHEARSED_OPTIONS: Values = {
    ("controller", "round_timeout"): 300,
    ("executor", "device"): "cpu",
    ("executor", "cpu_threads"): 1,
}


@dataclass(frozen=True)
class Rehearsal:
    """What is rehearsed.

    Attributes:
        hours: during which faults come and runs are submitted; the undisturbed run comes before, and the last run ends.
        seed: of the faults, and of every run.
        rounds: of a run.
        every: mean seconds between the recovery from a fault and the next one.
        draws: faults after which no other comes; None for as many as there is time for.
        moments: at which faults come, each drawn anew; without any they come when their pause is over.
        kinds: of faults; all if None.
        secure: whether hospitals have the policy ``sums``, and the server sees sums of updates alone.
    """

    hours: float
    seed: int = 0
    rounds: int = REHEARSAL_ROUNDS
    every: float = 20.0
    draws: int | None = None
    moments: Sequence[str] = ()
    kinds: Collection[str] | None = None
    secure: bool = False


@dataclass(frozen=True, eq=False)
class _Place:
    """Where runs are: the federation, its links, test images by site, and the key of its authority if it is here."""

    federation: Federation
    links: Mapping[str, SlowLink]
    images: Mapping[str, LabelledImages]
    authority: RSAPrivateKey | None


def rehearse(folder: Path, out: Path, plan: Rehearsal, report: Callable[[str], None]) -> dict[str, Any]:
    """Rehearse with copies of kits, and write what was measured into ``out``.

    Args:
        folder: with the kits, which are not changed.
        out: new or empty; the copies in it are removed at the end, because they have the kits' private keys.
        plan: what is rehearsed.
        report: called with a line whenever something has changed.

    Raises:
        ConfigurationError: if ``out`` is not empty, the kits are not complete, or one is damaged.
        GrandRoundsError: if the federation does not come up.
    """
    out = out.absolute()
    if out.exists() and any(out.iterdir()):
        raise ConfigurationError(f"{out} is not empty; choose another folder by --out")
    kits = kits_in(folder)
    before, port = state_of(kits), free_port()
    try:
        federation = copy_kits(kits, out, port, SUMS if plan.secure else OPEN)
        with _linked(federation, port, plan.seed) as (linked, links):
            try:
                images = drawn_test_images(linked.sites, out / TEST_IMAGES, plan.seed)
                start(linked, FEDERATION_SECONDS)
                found = _rehearsed(_Place(linked, links, images, authority_key(kits)), plan, report)
            finally:
                killed = stop_federation(linked)
                left = _left(linked)
    finally:
        for part in ("kits", "storage", TEST_IMAGES):
            shutil.rmtree(out / part, ignore_errors=True)
    result = {
        "hours": plan.hours,
        "seed": plan.seed,
        "sites": len(federation.sites),
        **found,
        "killed_at_the_end": len(killed),
        "left_processes": left[0],
        "left_files": left[1],
        "kits_unchanged": state_of(kits) == before,
        "versions": versions(),
    }
    write_json(out / REHEARSAL, result)
    return result


def passed(result: dict[str, Any]) -> bool:
    """Whether every run has ended with a usable model, nothing is left over, and the kits are as they were."""
    usable = all(not run["fault"] for run in [result["undisturbed"], *result["runs"]])
    return usable and not result["left_processes"] and not result["left_files"] and bool(result["kits_unchanged"])


def _rehearsed(place: _Place, plan: Rehearsal, report: Callable[[str], None]) -> dict[str, Any]:
    begun = time.monotonic()
    report("the undisturbed run")
    undisturbed = _run(place, plan, "rehearsal-0", None, math.inf, report)
    if not undisturbed.usable:
        report("the undisturbed run has no usable model, so there is nothing to compare with: no fault is made")
    started = time.monotonic()
    end = started + 3600 * plan.hours if undisturbed.usable else started
    sites = place.federation.sites
    kinds = [kind for kind in FAULT_KINDS if place.authority is not None or kind not in RENEWAL_FAULTS]
    kinds = [kind for kind in kinds if plan.kinds is None or kind in plan.kinds]
    watch = FaultWatch(drawn_faults(plan.seed, sites, plan.every, kinds, plan.moments), sites, started)
    runs: list[RehearsedRun] = []
    while time.monotonic() < end and not _all_drawn(plan, watch):
        runs.append(_run(place, plan, f"rehearsal-{len(runs) + 1}", watch, end, report))
    compared = [differences(run, undisturbed) for run in runs]
    return {
        "minutes": round((time.monotonic() - started) / 60, 1),
        "minutes_undisturbed": round((started - begun) / 60, 1),
        "test_images": sum(len(test.names) for test in place.images.values()),
        "undisturbed": asdict(undisturbed),
        "runs": [{**asdict(run), "differences": found} for run, found in zip(runs, compared, strict=True)],
        "largest_difference": max((abs(value) for found in compared for value in found.values()), default=None),
        "by_fault": by_fault(watch.costs),
        "faults": [asdict(cost) for cost in watch.costs],
        "nothing_to_harm": watch.skipped,
    }


def _run(
    place: _Place,
    plan: Rehearsal,
    name: str,
    watch: FaultWatch | None,
    end: float,
    report: Callable[[str], None],
) -> RehearsedRun:
    """A run from its submission to its end; faults come until ``end``."""
    submitted = time.monotonic()
    attempts = UNDISTURBED_ATTEMPTS if watch is None else REHEARSAL_ATTEMPTS
    sites = place.federation.sites
    run = FederatedRun(place.federation, rehearsed_job(plan, name, len(sites)), attempts)
    stage, seen = FaultStage(run, place.links, place.authority), 0
    try:
        while run.is_active(MOMENT_SECONDS if plan.moments else WATCH_SECONDS):
            now = time.monotonic()
            if watch is not None:
                known = len(watch.costs)
                watch.look(now, stage, more=now < end and not _all_drawn(plan, watch))
                for cost in watch.costs[known:]:
                    report(f"{name}, after round {cost.after_round}: {cost.kind} ({cost.site})")
            for line in run.messages[seen:]:
                report(f"{name}: {line}")
            seen = len(run.messages)
    finally:
        if watch is not None:
            watch.end(time.monotonic())
    now = time.monotonic()
    last = run.messages[-1] if run.messages else "the submission has ended without a word"
    lost = sum("lost" in event for event in run.events() if event["event"] == SUM_EVENT)
    found = replace(rehearsed_run(name, run.outcome, last, now - submitted, sites, place.images), lost_sums=lost)
    if watch is not None:
        watch.close(now, run.progress(), name, found.usable)
    report(f"{name}: {found.fault or 'its model can be used'} {found.scores}")
    return found


def _all_drawn(plan: Rehearsal, watch: FaultWatch) -> bool:
    return plan.draws is not None and len(watch.costs) >= plan.draws


def rehearsed_job(plan: Rehearsal, name: str, sites: int) -> Job:
    """The job of a run on synthetic images, FedPerl or FedAvg in sums; one site may be away if two others remain."""
    own = {"run_name": name, "rounds": plan.rounds, "seed": plan.seed, "min_sites": max(2, sites - 1)}
    values = {**REHEARSED_OPTIONS, **{("controller", option): value for option, value in own.items()}}
    if plan.secure:
        return load_job("fedavg").with_values({**values, ("controller", "aggregation"): "secure"})
    return load_job("fedperl").with_values(values)


@contextmanager
def _linked(federation: Federation, port: int, seed: int) -> Iterator[tuple[Federation, dict[str, SlowLink]]]:
    """Links of the sites, and one of the people, which is always whole; without them no name outside is reached."""
    links = {site: SlowLink(port, seed + number, connect=True) for number, site in enumerate(federation.sites)}
    people = SlowLink(port, connect=True)
    for link in (*links.values(), people):
        link.start()
    try:
        with variables_set({PROXY_VARIABLE: people.address}):
            yield replace(federation, proxies={site: link.address for site, link in links.items()}), links
    finally:
        for link in (*links.values(), people):
            link.stop()


def _left(federation: Federation) -> tuple[int, int]:
    """How many processes and temporary files the federation has left; the processes are killed then."""
    home = federation.folder / HOME
    await_end(lambda: bool(living_in(home)), LEFT_SECONDS, WATCH_SECONDS)
    processes = living_in(home)
    signal_processes(processes, signal.SIGKILL)
    temporary = [path for path in (federation.folder / TEMPORARY_FILES).rglob("*") if path.is_file()]
    half = [path for path in (federation.kits / federation.server / "grandrounds").rglob(".*") if path.is_file()]
    return len(processes), len(temporary) + len(half)
