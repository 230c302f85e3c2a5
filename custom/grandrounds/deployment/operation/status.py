"""The state of a federation as plain values: sites, jobs, rounds, disk, certificates, privacy, and what is wrong.

A person's kit asks the server. The kit of a server or a site is read on its own machine; a running site is not disturbed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nvflare.fuel.flare_api.flare_api import Session

from grandrounds import __version__
from grandrounds.deployment.job_watch import admin_session
from grandrounds.deployment.kit.certificates import WARNING_DAYS, connection_fault, days_left, read_certificate
from grandrounds.deployment.kit.machine import GIB, GOOD_DISK, MIN_DISK, listens
from grandrounds.deployment.kit.overlay import LEDGER_FOLDER
from grandrounds.deployment.kit.read import Kit, running_processes
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.record import AT_SERVER, EVENTS, MEAN, OF_SCORE, SUMMARY, read_events, traffic
from grandrounds.json_files import read_json_object
from grandrounds.privacy.gate.audit import last_failures
from grandrounds.privacy.gate.policy import POLICY_FILE, read_policies
from grandrounds.privacy.ledger.ledger import LEDGER_NAME, read_ledger

LOST_SECONDS = 60.0
"""A site reports to the server every ten seconds."""
LAST_EVENTS = 40
LAST_RUNS = 10
"""Runs whose last failed task is shown."""
Level = Literal["ok", "warning", "critical"]


@dataclass
class Status:
    """The state of a participant and of what it can see.

    Attributes:
        name: of the participant, or of a run.
        kind: ``server``, ``site``, ``person`` or ``run``.
        sites: by name: seconds since the server heard of it, its FLARE version, the rounds it contributed to.
        runs: name, status, round, rounds, seconds left, validation scores by round, lost sites and bytes of each.
        free: bytes free on the disk of the kit; None if the kit is not the server's or a site's.
        certificate_days: until the first of the kit's certificates expires.
        epsilon: spent by data set (at a site) or by site (at a run that reports it).
        events: the last ones of the run.
        warnings: what needs attention soon.
        failures: what must be mended now.
        failed_tasks: at a site, of each run: time, name, round and cause of the last task that failed.
    """

    name: str
    kind: str
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    free: int | None = None
    certificate_days: float | None = None
    epsilon: dict[str, float] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    failed_tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: str = __version__

    @property
    def level(self) -> Level:
        """The worst of all findings."""
        return "critical" if self.failures else "warning" if self.warnings else "ok"


def kit_status(kit: Kit, network: bool = True) -> Status:
    """The state that a kit's owner can see; without ``network`` the server is not contacted."""
    status = Status(kit.name, kit.kind)
    _certificates(kit, status)
    if kit.kind == "person":
        if network:
            _consortium(kit, status)
        return status
    _disk(kit, status)
    running = running_processes(kit)
    if not running:
        status.failures.append(
            f"FLARE does not run; see {kit.folder / 'log.txt'}, and start it by grandrounds kit start"
        )
    if kit.kind == "server":
        if running and not listens(running, kit.port):
            status.failures.append(
                f"FLARE runs, but does not listen on port {kit.port}; grandrounds doctor --kit finds why"
            )
        for folder in sorted((kit.folder / "grandrounds").glob("*/server")):
            if (folder / SUMMARY).is_file():
                _add_run(status, folder)
    else:
        if network and (fault := connection_fault(kit)):
            status.failures.append(fault)
        _spent(kit, status)
        _failed(kit, status)
    return status


def run_status(folder: Path) -> Status:
    """The state of a run, from the folder of its record.

    Raises:
        ConfigurationError: if the folder has no summary.
    """
    status = Status(folder.name, "run")
    _add_run(status, folder)
    return status


def comparable_scores(scores: Mapping[str, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The scores by round, in order, that are by the same metric and basis as the last one.

    Example:
        >>> old, new = {"by": "accuracy", "basis": "pooled"}, {"by": "log_likelihood", "basis": "pooled"}
        >>> list(comparable_scores({"2": new, "1": old, "10": new}))
        [2, 10]
    """
    if not scores:
        return {}
    last = scores[max(scores, key=int)]
    same = {number: s for number, s in scores.items() if (s["by"], s["basis"]) == (last["by"], last["basis"])}
    return {int(number): same[number] for number in sorted(same, key=int)}


def describe_score(score: Mapping[str, Any]) -> str:
    """A score with its basis and interval, and the mean over sites as the second view.

    Example:
        >>> score = {"metric": "accuracy", "by": "accuracy", "basis": "pooled", "score": 0.7, "mean": 0.5}
        >>> describe_score({**score, "low": 0.6, "high": 0.8})
        'pooled accuracy 0.700 [0.600, 0.800], mean over sites 0.500'
    """
    interval = f" [{score['low']:.3f}, {score['high']:.3f}]" if "low" in score else ""
    text = f"{score['basis']} {_words(score['by'])} {score['score']:.3f}{interval}"
    if score["basis"] in (MEAN, AT_SERVER) or "mean" not in score:
        return text
    metric = "" if score["by"] == score["metric"] else f" of {_words(score['metric'])}"
    return f"{text}, mean over sites{metric} {score['mean']:.3f}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _certificates(kit: Kit, status: Status) -> None:
    try:
        left = min(days_left(read_certificate(path)) for path in (kit.certificate, kit.authority))
    except GrandRoundsError as error:
        status.failures.append(str(error))
        return
    status.certificate_days = round(left, 1)
    if left < WARNING_DAYS:
        when = f"expired {-left:.0f} days ago" if left < 0 else f"expires in {left:.0f} days"
        (status.failures if left < 0 else status.warnings).append(f"a certificate {when}; grandrounds kit renew")


def _disk(kit: Kit, status: Status) -> None:
    status.free = shutil.disk_usage(kit.folder).free
    if status.free < GOOD_DISK:
        message = f"{status.free / GIB:.1f} GiB free at {kit.folder}; grandrounds kit clean removes folders of old jobs"
        (status.failures if status.free < MIN_DISK else status.warnings).append(message)


def _spent(kit: Kit, status: Status) -> None:
    """The epsilon of the site's data sets, for the unit and delta of its policy's default scope."""
    ledger, policy = kit.local / LEDGER_FOLDER / LEDGER_NAME, kit.local / POLICY_FILE
    try:
        if ledger.is_file() and policy.is_file():
            content = read_json_object(policy)
            rules = read_policies(content, POLICY_FILE)[content["default_scope"]]
            booked = read_ledger(ledger)
            status.epsilon = {name: booked.spent(name, rules.delta, rules.unit) for name in booked.datasets}
    except GrandRoundsError as error:
        status.failures.append(str(error))


def _failed(kit: Kit, status: Status) -> None:
    """The last failed task of each run, of the runs that failed last; the server is not told these causes."""
    try:
        status.failed_tasks = dict([*last_failures(kit.local / LEDGER_FOLDER).items()][-LAST_RUNS:])
    except GrandRoundsError as error:
        status.failures.append(str(error))


def _consortium(kit: Kit, status: Status) -> None:
    try:
        with admin_session(kit) as session:
            info = session.get_system_info()
            versions = _versions(session)
            for client in info.client_info:
                last = client.last_connect_time
                seconds = None if last is None else max(0.0, round(time.time() - last, 1))
                status.sites[client.name] = {"last_seen": seconds, "flare": versions.get(client.name)}
                if seconds is not None and seconds > LOST_SECONDS:
                    status.warnings.append(f"{client.name} was last seen {seconds:.0f} s ago")
            for job in info.job_info:
                _add_job(session, job.job_id, status)
    except GrandRoundsError as error:
        status.failures.append(str(error))


def _versions(session: Session) -> dict[str, str]:
    """FLARE's version at each site; empty if the person may not ask."""
    try:
        found = session.report_version("client")
    except Exception:  # a site that is ending
        return {}
    return {
        site: str(entry["version"]) for site, entry in found.items() if isinstance(entry, dict) and "version" in entry
    }


def _add_job(session: Session, job: str, status: Status) -> None:
    stats: dict[str, Any] = {}
    with suppress(Exception):  # it is starting or ending
        groups = session.show_stats(job, "server").get("server", {})
        for group in groups.values() if isinstance(groups, Mapping) else ():
            stats |= group if isinstance(group, dict) else {}
    meta = session.get_job_meta(job)
    run = {"name": str(meta.get("name", job)), "job": job, "status": str(meta.get("status", ""))}
    status.epsilon |= stats.get("epsilon") or {}
    _finish_run(status, {**run, **_numbers(stats)})


def _numbers(stats: Mapping[str, Any]) -> dict[str, Any]:
    """What a run tells of itself: round, rounds, seconds left, scores, contributions, lost sites, bytes."""
    number, rounds, pace = stats.get("round") or 0, stats.get("rounds") or 0, stats.get("seconds_per_round")
    left = None if pace is None else max(0, rounds - number + 1) * pace
    kept = ("scores", "contributions", "lost", "moved")
    return {"round": number, "rounds": rounds, "seconds_left": left, **{key: stats.get(key) or {} for key in kept}}


def _add_run(status: Status, folder: Path) -> None:
    summary = read_json_object(folder / SUMMARY)
    events = read_events(folder) if (folder / EVENTS).is_file() else []
    status.events = events[-LAST_EVENTS:]
    status.epsilon |= {site: entry["epsilon"] for site, entry in summary["privacy"].items() if "epsilon" in entry}
    rounds = summary["configuration"].get("rounds", 0)
    scores = {str(e["round"]): {k: e[k] for k in OF_SCORE if k in e} for e in events if e["event"] == "score"}
    seconds = [entry["round_seconds"] for entry in summary["rounds"][-5:]]
    pace = sum(seconds) / len(seconds) if seconds else None
    done, running = summary["rounds_done"], summary["status"] == "running"
    _finish_run(
        status,
        {
            "name": str(summary["configuration"].get("run_name", folder.parent.name)),
            "status": summary["status"],
            "reason": summary["reason"],
            "round": done,
            "rounds": rounds,
            "seconds_left": (rounds - done) * pace if running and pace else None,
            "scores": scores,
            "contributions": summary["contributions"],
            "lost": summary["lost"],
            "moved": traffic(summary["bytes"]).moved,
            "checkpoints": summary["checkpoints"],
        },
    )


def _finish_run(status: Status, run: dict[str, Any]) -> None:
    """Add a run, its sites, and a warning for what is wrong with it."""
    status.runs.append(run)
    for site, rounds in run["contributions"].items():
        status.sites.setdefault(site, {})["contributions"] = rounds
    status.warnings.extend(_run_warnings(run))


def _run_warnings(run: Mapping[str, Any]) -> Iterator[str]:
    for site, last in run["lost"].items():
        yield f"run {run['name']}: {site} is lost since round {last}"
    if run["status"] in ("failed", "aborted"):
        yield f"run {run['name']} {run['status']}: {run.get('reason', '')}"
