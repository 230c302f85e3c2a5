"""The state of a federation as plain values: sites, jobs, rounds, disk, certificates, privacy, and what is wrong.

A person's kit asks the server. The kit of a server or a site is read on its own machine; a running site is not disturbed.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from nvflare.fuel.flare_api.flare_api import Session

from grandrounds import __version__
from grandrounds.data.fitness import Finding
from grandrounds.data.fitness import Level as FindingLevel
from grandrounds.deployment.job_watch import admin_session, run_statistics
from grandrounds.deployment.kit.certificates import certificate_days, connection_fault
from grandrounds.deployment.kit.findings import error_text, guarded
from grandrounds.deployment.kit.overlay import LEDGER_FOLDER
from grandrounds.deployment.kit.read import Kit
from grandrounds.deployment.operation.health import RECENT_SECONDS, certificates, examine_health
from grandrounds.deployment.operation.runs import SeenRun, recorded_run, running_first, running_run
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.record import SUMMARY
from grandrounds.json_files import read_json_object
from grandrounds.privacy.gate.audit import AUDIT_NAME, FAILED, Reason
from grandrounds.privacy.gate.policy import POLICY_FILE, read_policies
from grandrounds.privacy.ledger.ledger import LEDGER_NAME, read_ledger
from grandrounds.protocol.paths import STATES

LOST_SECONDS = 60.0
"""A site reports to the server every ten seconds."""
LAST_RUNS = 10
"""Runs that are shown, and runs whose last failed task is."""
Level = Literal["ok", "warning", "critical"]
UNANSWERED = "the training has ended without an answer: its process was killed, or the job aborted; see log.txt"
OF_THE_SITE = frozenset({Reason.DATASET, Reason.DISK, Reason.AUDIT, Reason.FAILED})
"""Refusals that the next job will meet, too, although policy, ledger and manifest as they are now need not show it."""
OF_A_TASK = ("time", "job", "run", "task", "round", "dataset")


@dataclass(frozen=True)
class Trail:
    """The last answers of a site.

    Attributes:
        released: time, job, run, task, round and data set of the last release; empty before the first.
        refused: the same of the last refusal, with ``reason`` and ``detail``.
        failures: of each run that has one the last failed task, with ``cause``, by the run's name or the job's id; the run
            whose task has failed last is the last.
    """

    released: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)

    def standing(self, seconds: float, now: datetime | None = None) -> str:
        """The last refusal as a sentence, if its reason is at the site, it is recent, and nothing was released since.

        Args:
            seconds: how old it may be.
            now: the time; None for the clock's.
        """
        if self.refused.get("reason") not in OF_THE_SITE or str(self.refused["time"]) < self.released.get("time", ""):
            return ""
        age = (now or datetime.now(UTC)) - datetime.fromisoformat(str(self.refused["time"]))
        if age.total_seconds() > seconds:
            return ""
        return (
            f"the last task was refused at {self.refused['time']}: {self.refused['reason']} ({self.refused['detail']})"
        )


def read_trail(folder: Path) -> Trail:
    """Read the audit trail in a site's folder of ledger and trail; without one nothing has been answered.

    Raises:
        GrandRoundsError: if it cannot be read; the line is named.
    """
    path = folder / AUDIT_NAME
    trail = Trail()
    for number, text in enumerate(_lines(path), 1):
        try:
            line = json.loads(text)
            _take(trail, line)
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise GrandRoundsError(f"{path}: line {number} is damaged; restore the folder from a backup") from error
    return trail


def _take(trail: Trail, line: Mapping[str, Any]) -> None:
    outcome = line.get("outcome")
    about = {name: line.get(name) for name in OF_A_TASK}
    if outcome in ("released", "refused"):
        about["time"] = datetime.fromisoformat(line["time"]).astimezone(UTC).isoformat(timespec="seconds")
    if outcome == "released":
        trail.released.update(about)
    elif outcome == "refused":
        trail.refused.update({**about, "reason": line.get("reason"), "detail": line.get("detail")})
    task = {"task": line.get("task"), "round": line.get("round")}
    run, cause = str(line.get("run") or f"of job {line.get('job', 'unknown')}"), _cause(line)
    known = outcome == "released" and task.items() <= trail.failures.get(run, {}).items()
    if cause and not known:
        trail.failures.pop(run, None)
        trail.failures[run] = {"time": line.get("time"), **task, "cause": cause}


def _lines(path: Path) -> Iterator[str]:
    try:
        if path.is_file():
            with path.open(encoding="utf-8") as stream:
                yield from stream
    except (OSError, ValueError) as error:
        raise GrandRoundsError(f"{path}: {error}") from error


def _cause(line: Mapping[str, Any]) -> str:
    """Why the task of a line has failed; empty if it has not, or if the line does not say it."""
    kept = {"refused": "detail", FAILED: "detail", "released": "in_place_of"}
    outcome = str(line.get("outcome"))
    return UNANSWERED if outcome == "unanswered" else str(line.get(kept.get(outcome, ""), ""))


@dataclass
class Status:
    """The state of a participant and of what it can see.

    Attributes:
        name: of the participant, or of a run.
        kind: ``server``, ``site``, ``person`` or ``run``.
        findings: of all checks, also what is fine: level, the check's name, a sentence.
        sites: by name: seconds since the server heard of it, and its FLARE version.
        runs: the facts of each, see :class:`~grandrounds.deployment.operation.runs.SeenRun`; running ones first.
        free: bytes free on the disk of the kit; None if the kit is not the server's or a site's.
        certificate_days: until the first of the kit's certificates expires.
        epsilon: spent by data set (at a site) or by site (at a run that reports it).
        events: the last ones of the run that comes first.
        failed_tasks: at a site, of each run: time, name, round and cause of the last task that failed.
        released: at a site, when and for what something was released for the last time.
        refused: at a site, the same of the last refusal, with its reason.
    """

    name: str
    kind: str
    findings: list[Finding] = field(default_factory=list)
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    free: int | None = None
    certificate_days: float | None = None
    epsilon: dict[str, float] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    failed_tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    released: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, Any] = field(default_factory=dict)
    version: str = __version__

    @property
    def warnings(self) -> list[str]:
        """What needs attention soon."""
        return [finding.message for finding in self.findings if finding.level == "warning"]

    @property
    def failures(self) -> list[str]:
        """What must be mended now."""
        return [finding.message for finding in self.findings if finding.level == "failure"]

    @property
    def level(self) -> Level:
        """The worst of all findings."""
        return "critical" if self.failures else "warning" if self.warnings else "ok"

    def add(self, level: FindingLevel, check: str, message: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(level, check, message))

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {**asdict(self), "warnings": self.warnings, "failures": self.failures, "level": self.level}


def kit_status(kit: Kit, network: bool = True) -> Status:
    """The state that a kit's owner can see; without ``network`` the server is not contacted."""
    status = Status(kit.name, kit.kind)
    if kit.kind == "person":
        status.findings += guarded(certificates, kit)
    else:
        status.findings += examine_health(kit)
        status.free = shutil.disk_usage(kit.folder).free
    if not any(finding.check == "certificates" and finding.level == "failure" for finding in status.findings):
        status.certificate_days = round(certificate_days(kit), 1)
    if kit.kind == "server":
        _runs(kit, status)
    elif kit.kind == "site":
        if network and (fault := connection_fault(kit)):
            status.add("failure", "server", fault)
        _spent(kit, status)
        _answers(kit, status)
    elif network:
        _consortium(kit, status)
    return status


def run_status(folder: Path) -> Status:
    """The state of a run, from the folder of its record.

    Raises:
        ConfigurationError: if the folder has no summary.
    """
    status = Status(folder.name, "run")
    _show(status, [recorded_run(folder)])
    return status


def _runs(kit: Kit, status: Status) -> None:
    """The runs of a server; one whose record cannot be read is named, and hides no other."""
    runs: list[SeenRun] = []
    for folder in sorted((kit.folder / STATES).glob("*/server")):
        if not (folder / SUMMARY).is_file():
            continue
        try:
            runs.append(recorded_run(folder))
        except Exception as error:  # an old file may be cut, or have any form
            message = f"the record of run {folder.parent.name} cannot be read ({error_text(error)})"
            status.add("warning", "runs", f"{message}; {folder.parent} can be moved away when its study is over")
    _show(status, runs)


def _show(status: Status, runs: list[SeenRun]) -> None:
    for run in running_first(runs)[: max(LAST_RUNS, sum(run.running for run in runs))]:
        status.runs.append(run.facts)
        status.findings += run.findings()
        status.epsilon |= {site: value for site, value in run.epsilon.items() if site not in status.epsilon}
        status.events = status.events or run.events


def _spent(kit: Kit, status: Status) -> None:
    """The epsilon of the site's data sets, for the unit and delta of its policy's default scope."""
    ledger, policy = kit.local / LEDGER_FOLDER / LEDGER_NAME, kit.local / POLICY_FILE
    try:
        if ledger.is_file() and policy.is_file():
            content = read_json_object(policy)
            rules = read_policies(content, POLICY_FILE)[content["default_scope"]]
            booked = read_ledger(ledger)
            status.epsilon = {name: booked.spent(name, rules.delta, rules.unit) for name in booked.datasets}
    except GrandRoundsError:  # which the checks of policy and ledger report
        return


def _answers(kit: Kit, status: Status) -> None:
    """The site's last answers, and why tasks of the last runs have failed here, which the server does not learn."""
    try:
        trail = read_trail(kit.local / LEDGER_FOLDER)
    except GrandRoundsError as error:
        status.add("failure", "answers", str(error))
        return
    status.failed_tasks = dict([*trail.failures.items()][-LAST_RUNS:])
    status.released, status.refused = trail.released, trail.refused
    if standing := trail.standing(RECENT_SECONDS):
        status.add("warning", "answers", standing)


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
                    status.add("warning", "sites", f"{client.name} was last seen {seconds:.0f} s ago")
            _show(status, [run for job in info.job_info if (run := _running_run(session, job.job_id))])
    except GrandRoundsError as error:
        status.add("failure", "server", str(error))


def _versions(session: Session) -> dict[str, str]:
    """FLARE's version at each site; empty if the person may not ask."""
    try:
        versions = session.report_version("client")
    except Exception:  # a site that is ending
        return {}
    return {
        site: str(entry["version"])
        for site, entry in versions.items()
        if isinstance(entry, dict) and "version" in entry
    }


def _running_run(session: Session, job: str) -> SeenRun | None:
    """The run of a job; None if the job has ended meanwhile."""
    try:
        meta = session.get_job_meta(job)
    except Exception:
        return None
    return running_run(str(meta.get("name", job)), job, str(meta.get("status", "")), run_statistics(session, job))
