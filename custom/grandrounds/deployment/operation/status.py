"""The state of a federation as plain values: sites, jobs, rounds, disk, certificates, privacy, and what is wrong.

A person's kit asks the server. The kit of a server or a site is read on its own machine; a running site is not disturbed.
Runs are seen from a server's records, or from the statistics of a running job.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import psutil
from nvflare.fuel.flare_api.flare_api import Session

from grandrounds import __version__
from grandrounds.data.fitness import Finding
from grandrounds.data.fitness import Level as FindingLevel
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import read_manifest
from grandrounds.data.site import CONFIG_NAME, DatasetLocation, locate_dataset
from grandrounds.deployment.job_watch import admin_session, run_statistics
from grandrounds.deployment.kit.certificates import certificate_days, connection_fault
from grandrounds.deployment.kit.doctor import certificate, privacy
from grandrounds.deployment.kit.findings import Check, error_text, guarded, verdict
from grandrounds.deployment.kit.machine import disk, folders, listens
from grandrounds.deployment.kit.overlay import LEDGER_FOLDER
from grandrounds.deployment.kit.read import PROCESSES, Kit, running_processes, supervisor
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.identity.copies import refused_copies, refused_here
from grandrounds.federation.proxy import proxy_url
from grandrounds.federation.server.record import (
    AT_SERVER,
    EVENTS,
    MEAN,
    OF_SCORE,
    RUNNING,
    STOPPED,
    SUMMARY,
    absences,
    read_events,
    traffic,
    with_true_status,
)
from grandrounds.files import read_json_object
from grandrounds.privacy.gate.audit import AUDIT_NAME, FAILED
from grandrounds.privacy.gate.policy import POLICY_FILE, read_policies
from grandrounds.privacy.inventory import dataset_identity, files_state
from grandrounds.privacy.ledger.chain import noted_head
from grandrounds.privacy.ledger.ledger import LEDGER_NAME, Ledger, LedgerContent, read_ledger
from grandrounds.privacy.ledger.lines import DatasetIdentity
from grandrounds.protocol.paths import OWN_SCORES, STATES

LAST_EVENTS = 40
ABSENCES = ("lost", "silent", "paused", "refused")
"""Why a site is not at work in a run."""
PACE_OF = 5
"""The last rounds, of whose durations the time left is computed."""


class SeenRun(NamedTuple):
    """A run.

    Attributes:
        facts: name, status, reason, round, rounds, seconds left, validation scores by round, contributions, sites
            that are not at work, remarks, drops by site, bytes, checkpoints, and seconds since it ended; None while it runs.
        events: the last ones.
        epsilon: spent by site, as far as it is reported.
    """

    facts: dict[str, Any]
    events: list[dict[str, Any]]
    epsilon: dict[str, float]

    @property
    def running(self) -> bool:
        """Whether it goes on; FLARE writes the word in capitals."""
        return str(self.facts["status"]).lower() == RUNNING

    def findings(self) -> Iterator[Finding]:
        """What is wrong with it. A run that has ended warns for a day, and its lost sites no more."""
        name, status = self.facts["name"], self.facts["status"]
        if self.running:
            for site, words in absences(self.facts).items():
                yield Finding("warning", "runs", f"run {name}: {site} is {words}")
            for remark in self.facts["remarks"]:
                yield Finding("warning", "runs", f"run {name}: {remark}")
        ended = self.facts.get("ended")
        if status in ("failed", "aborted", STOPPED) and (ended is None or ended < RECENT_SECONDS):
            yield Finding("warning", "runs", f"run {name} {status}: {self.facts.get('reason', '')}")


def recorded_run(folder: Path) -> SeenRun:
    """A run, from the folder of its record.

    Raises:
        ConfigurationError: if the folder has no summary, or a damaged one.
        KeyError: if the summary is of another form.
    """
    summary = with_true_status(read_json_object(folder / SUMMARY), folder)
    events = read_events(folder) if (folder / EVENTS).is_file() else []
    rounds = summary["configuration"].get("rounds", 0)
    seconds = [entry["round_seconds"] for entry in summary["rounds"][-PACE_OF:]]
    pace = sum(seconds) / len(seconds) if seconds else None
    status, reason, done = summary["status"], summary["reason"], summary["rounds_done"]
    running = status == RUNNING
    facts = {
        "name": str(summary["configuration"].get("run_name", folder.parent.name)),
        "status": status,
        "reason": reason,
        "round": done,
        "rounds": rounds,
        "seconds_left": (rounds - done) * pace if running and pace else None,
        "scores": {str(e["round"]): {k: e[k] for k in OF_SCORE if k in e} for e in events if e["event"] == "score"},
        "contributions": summary["contributions"],
        **{word: summary.get(word, {}) for word in ABSENCES},
        "remarks": summary.get("remarks", []),
        "dropped": [(e["site"], e["reason"]) for e in events if e["event"] == "dropped"],
        "moved": traffic(summary["bytes"]).moved,
        "checkpoints": summary["checkpoints"],
        "ended": None if running else _since(summary),
    }
    epsilon = {site: entry["epsilon"] for site, entry in summary["privacy"].items() if "epsilon" in entry}
    return SeenRun(facts, events[-LAST_EVENTS:], epsilon)


def running_run(name: str, job: str, status: str, statistics: Mapping[str, Any]) -> SeenRun:
    """A run of a job, from the statistics of its controller; nothing while it starts or ends."""
    number, rounds, pace = (
        statistics.get("round") or 0,
        statistics.get("rounds") or 0,
        statistics.get("seconds_per_round"),
    )
    kept = ("scores", "contributions", *ABSENCES, "moved")
    facts: dict[str, Any] = {
        "name": name,
        "job": job,
        "status": status,
        "round": number,
        "rounds": rounds,
        "seconds_left": None if pace is None else max(0, rounds - number + 1) * pace,
        "ended": None,
        "dropped": [],
        "remarks": statistics.get("remarks") or [],
        **{key: statistics.get(key) or {} for key in kept},
    }
    return SeenRun(facts, [], statistics.get("epsilon") or {})


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


def _since(summary: Mapping[str, Any]) -> float:
    """Seconds since a run wrote its record for the last time."""
    if "written" in summary:
        return max(0.0, time.time() - datetime.fromisoformat(summary["written"]).timestamp())
    begun = datetime.fromisoformat(summary["started"]).timestamp()
    return max(0.0, time.time() - begun - float(summary["seconds"]))


LOST_SECONDS = 60.0
"""A site reports to the server every ten seconds."""
LAST_RUNS = 10
"""Runs that are shown, and runs whose last failed task is."""
Level = Literal["ok", "warning", "critical"]
UNANSWERED = "the training has ended without an answer: its process was killed, or the job aborted; see log.txt"
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

    def recent(self, seconds: float, now: datetime | None = None) -> Iterator[str]:
        """What has gone wrong in the last time, as sentences, whatever has been released since.

        Args:
            seconds: how long it is a warning.
            now: the time; None for the clock's.
        """
        for run, task in self.failures.items():
            age = (now or datetime.now(UTC)) - datetime.fromisoformat(task["time"]).astimezone(UTC)
            if age.total_seconds() <= seconds:
                yield failure_line(run, task)


def failure_line(run: str, task: Mapping[str, Any]) -> str:
    """Of a run the last task that failed, in a sentence."""
    number = "" if task["round"] is None else f" of round {task['round']}"
    return f"run {run}: {task['task']}{number} failed at {task['time']}: {task['cause']}"


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
        datetime.fromisoformat(line["time"])
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
        runs: the facts of each, see :class:`~grandrounds.deployment.operation.status.SeenRun`; running ones first.
        free: bytes free on the disk of the kit; None if the kit is not the server's or a site's.
        certificate_days: until the first of the kit's certificates expires.
        epsilon: spent by data set (at a site) or by site (at a run that reports it).
        events: the last ones of the run that comes first.
        failed_tasks: at a site, of each run: time, name, round and cause of the last task that failed.
        released: at a site, when and for what something was released for the last time.
        refused: at a site, the same of the last refusal, with its reason.
        own_scores: at a site, of the last runs: scores of tested models on its own images, by name of the run and model.
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
    own_scores: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
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
        status.findings += guarded(certificate, kit)
    else:
        status.findings += examine_health(kit)
        status.free = shutil.disk_usage(kit.folder).free
    if not any(finding.check == "certificate" and finding.level == "failure" for finding in status.findings):
        status.certificate_days = round(certificate_days(kit), 1)
    if kit.kind == "server":
        _runs(kit, status)
    elif kit.kind == "site":
        if network and (fault := connection_fault(kit)):
            status.add("failure", "server", fault)
        _spent(kit, status)
        _answers(kit, status)
        _own_scores(kit, status)
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
    """Running ones first, then those that ended last."""
    ordered = sorted(runs, key=lambda run: (not run.running, run.facts["ended"] or 0.0))
    for run in ordered[: max(LAST_RUNS, sum(run.running for run in runs))]:
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
    for warning in trail.recent(RECENT_SECONDS):
        status.add("warning", "answers", warning)


def _own_scores(kit: Kit, status: Status) -> None:
    """Scores that stay at the site; the last runs come last."""
    files = sorted((kit.folder / STATES).glob(f"*/{kit.name}/{OWN_SCORES}"), key=lambda path: path.stat().st_mtime)
    for path in files[-LAST_RUNS:]:
        try:
            status.own_scores[path.parents[1].name] = dict(read_json_object(path))
        except GrandRoundsError as error:
            status.add("warning", "scores", str(error))


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


STATED_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,31}")
"""What a site may call its version: it is shown to the server's operator."""


def _versions(session: Session) -> dict[str, str]:
    """FLARE's version at each site; empty if the person may not ask."""
    try:
        versions = session.report_version("client")
    except Exception:  # a site that is ending
        return {}
    stated = {site: str(entry.get("version")) for site, entry in versions.items() if isinstance(entry, dict)}
    return {site: version for site, version in stated.items() if STATED_VERSION.fullmatch(version)}


def _running_run(session: Session, job: str) -> SeenRun | None:
    """The run of a job; None if the job has ended meanwhile."""
    try:
        meta = session.get_job_meta(job)
    except Exception:
        return None
    return running_run(str(meta.get("name", job)), job, str(meta.get("status", "")), run_statistics(session, job))


RECENT_SECONDS = 24 * 3600.0
"""How long what has happened is a warning: a refusal, the failure of a run, a copy of a kit."""
LOOKED_FOR = 64
"""Image files of a data set that are looked for; the doctor reads all."""
MOST_COMPARED = 20_000
"""Images of a data set whose files are compared with those of the last job at every look."""


def examine_health(kit: Kit) -> list[Finding]:
    """What is not as it must be, and what is fine, at the machine of a server or a site; the network is not used."""
    checks: list[Check] = [certificate, disk, folders, _processes]
    checks += [_connection, _identity, _policy, _ledger, _data_sets] if kit.kind == "site" else [_copies]
    return list(chain.from_iterable(guarded(check, kit) for check in checks))


def _processes(kit: Kit) -> Iterator[Finding]:
    """FLARE runs, listens if it is the server's, and is started again when it dies."""
    running = running_processes(kit)
    if not running:
        message = f"FLARE does not run; see {kit.folder / 'log.txt'}, and start it by grandrounds kit start"
        yield Finding("failure", "processes", message)
        return
    if kit.kind == "server" and not listens(running, kit.port):
        message = f"FLARE runs, but does not listen on port {kit.port}; grandrounds doctor --kit finds why"
        yield Finding("failure", "processes", message)
    elif PROCESSES.is_dir() and not supervisor(kit):
        message = (
            "FLARE runs, but what starts it again after a crash has ended; run grandrounds kit stop, then start it as "
            "before, when no job runs"
        )
        yield Finding("warning", "processes", message)
    else:
        yield Finding("ok", "processes", f"FLARE runs (process {running[0]})")


def _connection(kit: Kit) -> Iterator[Finding]:
    """FLARE's client has a connection to the server, or to the proxy before it; the server is not asked."""
    running = running_processes(kit)
    proxy = proxy_url()
    port = urlsplit(proxy).port if proxy else kit.port
    remote = _remote_ports(running)
    if not running or remote is None:
        return
    place = f"to port {port} of {'the proxy' if proxy else kit.host}"
    away = f"FLARE runs and has no connection {place}; it tries again by itself: is the server up? See log.txt"
    yield verdict("connection", "", place, "" if port in remote else away)


def _remote_ports(processes: Sequence[int]) -> set[int] | None:
    """The ports to which these processes are connected; None where one cannot be looked into."""
    ports: set[int] = set()
    for number in processes:
        try:
            connections = psutil.Process(number).net_connections(kind="tcp")
        except psutil.AccessDenied:
            return None
        except psutil.Error:  # it has ended
            continue
        ports |= {
            connection.raddr.port
            for connection in connections
            if connection.status == psutil.CONN_ESTABLISHED and connection.raddr
        }
    return ports


def _identity(kit: Kit) -> Iterator[Finding]:
    """No copy of this kit is connected in its place."""
    if reason := refused_here(kit.folder):
        yield Finding("failure", "identity", f"the server refuses this kit: {reason}")


def _copies(kit: Kit) -> Iterator[Finding]:
    """No kit was used at two places in the last day."""
    for seen in refused_copies(kit.folder, RECENT_SECONDS):
        text = f"{seen.what}: a second copy of its kit was refused {seen.ago / 60:.0f} min ago"
        yield Finding("warning", "identity", f"{text}; if nobody there knows of it, renew the kit: its key was taken")


def _policy(kit: Kit) -> Iterator[Finding]:
    """The site's privacy policy can be used; what it says is the doctor's matter."""
    return (finding for finding in privacy(kit) if finding.level == "failure")


def _ledger(kit: Kit) -> Iterator[Finding]:
    """The privacy ledger is complete, and has the head that the server has last returned."""
    content = _read_ledger(kit)
    content.chain.require_head(noted_head(kit.folder / STATES))
    yield Finding("ok", "ledger", f"complete, {len(content.bookings)} releases")


def _data_sets(kit: Kit) -> Iterator[Finding]:
    """The images of each data set are there, and are those of the last job."""
    path = kit.local / CONFIG_NAME
    if not path.is_file():
        return
    content: LedgerContent | None = None
    with suppress(GrandRoundsError):  # which the check of the ledger reports
        content = _read_ledger(kit)
    for name in read_json_object(path).get("datasets", {}):
        try:
            yield _data_set(name, locate_dataset(kit.name, name, [kit.local]), content)
        except (GrandRoundsError, OSError) as error:
            yield Finding("failure", "data sets", str(error))


def _data_set(name: str, location: DatasetLocation, content: LedgerContent | None) -> Finding:
    records = read_manifest(location.manifest, choices=location.keys)
    identity, names = dataset_identity(name, records), [record.image for record in records]
    looked = names[:: max(1, len(names) // LOOKED_FOR)]
    missing = _missing(location.root, looked)
    if missing:
        level = "failure" if len(missing) == len(looked) else "warning"
        message = f"{len(missing)} of {len(looked)} images that were looked for are not in {location.root}"
        return Finding(level, "data sets", f"{name!r}: {message}; is the folder mounted?")  # type: ignore[arg-type]
    when = ""
    if content is not None:
        content.require_known(identity)
        when = _changed_since(content, identity, names, location.root) if len(names) <= MOST_COMPARED else ""
    if when:
        message = f"image files have changed since a job has read them ({when}); the next job reads them again"
        return Finding("warning", "data sets", f"{name!r}: {message}, and what has changed is in its record")
    return Finding("ok", "data sets", f"{name!r}: {len(names)} images, reachable")


def _missing(root: Path, names: Sequence[str]) -> list[str]:
    """Images that are not there; of an archive, whose list of files is read, none."""
    if root.is_dir():
        return [name for name in names if not (root / name).is_file()]
    with open_images(root):
        return []


def _changed_since(content: LedgerContent, identity: DatasetIdentity, names: Sequence[str], root: Path) -> str:
    """When a job read other files of the same manifest; empty if the last one has read these, or none has any."""
    latest = content.latest(identity.name)
    if latest is None or latest.dataset != identity:
        return ""
    with open_images(root) as reader:
        return "" if files_state(reader, identity, names) == latest.state else latest.time


def _read_ledger(kit: Kit) -> LedgerContent:
    return Ledger(kit.local / LEDGER_FOLDER, kit.name).content()
