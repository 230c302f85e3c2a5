"""Submitting a job to a federation: required sites, watching it, its results, and resuming after a failure."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from nvflare.fuel.flare_api.flare_api import Session

from grandrounds.deployment.disclosure import disclosure, releases_of
from grandrounds.deployment.job_watch import (
    JobWatch,
    NoSuchJob,
    SiteWatch,
    admin_session,
    connected_sites,
    refusals,
    run_statistics,
    summary_in,
)
from grandrounds.deployment.jobs import Job, Key, write_job
from grandrounds.deployment.kit.admission import RELEASES
from grandrounds.deployment.kit.read import Kit
from grandrounds.deployment.manifest import add_manifests
from grandrounds.deployment.retrying import Patience, pause_after
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.server.record import JOB_REFUSED, absences
from grandrounds.federation.server.sites import require_names
from grandrounds.protocol.refusal import Refusal

JOB_LOST: Final = "lost"
JOB_POLL_SECONDS = 2.0
RECONNECT_SECONDS = 180.0
RETRY_PAUSES = (5.0, 15.0, 30.0, 60.0, 120.0)
"""Seconds before a run that got no further is submitted again; the last one counts for all later attempts."""
EVERY_SITE = "@default"
"""FLARE's key for the resources of a job at every site."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """How a submitted run ended.

    Attributes:
        jobs: FLARE's ids, the last attempt's at the end.
        status: FLARE's status of the last attempt; ``lost`` if its server died, or does not know the job any more.
        summary: the run's own; empty if it left none.
        download: folder with the last attempt's results; None if there are none.
        refused: sites that have not accepted the last attempt's job, with their reasons.
    """

    jobs: tuple[str, ...]
    status: str
    summary: dict[str, Any] = field(default_factory=dict)
    download: Path | None = None
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether all rounds are complete and a model was selected; FLARE's status is not considered."""
        return self.summary.get("status") == "finished"

    @property
    def not_taken(self) -> bool:
        """Whether the job could not take up the run of its name, which is as it was."""
        return self.summary.get("status") == JOB_REFUSED

    @property
    def refusals(self) -> dict[str, Refusal]:
        """What sites refuse for good, at the job's arrival or in the run."""
        at_arrival = {site: Refusal.read(reason) for site, reason in self.refused.items()}
        noted = {site: Refusal(**entry) for site, entry in self.summary.get("refusals", {}).items()}
        return {
            site: refusal for site, refusal in {**at_arrival, **noted}.items() if refusal is not None and refusal.final
        }

    @property
    def final(self) -> bool:
        """Whether sites refuse it for good or its options do not fit, so that another attempt ends in the same way."""
        return bool(self.summary.get("final") or (self.refusals and not self.summary))

    @property
    def in_use(self) -> bool:
        """Whether that is because another job has the run, such as that of a submission that was killed."""
        return bool(self.summary.get("in_use"))


def with_roster(
    job: Job, sites: Sequence[str] = (), mandatory: Sequence[str] = (), min_sites: int | None = None
) -> Job:
    """A copy of the job for certain sites.

    Args:
        job: not changed.
        sites: sites that take part; empty for all.
        mandatory: sites that must be connected for the job to start.
        min_sites: minimum number of sites; None leaves the job's.

    Raises:
        ConfigurationError: if a mandatory site does not take part, or there are fewer sites than the minimum.
    """
    sites = require_names(sites, "--sites")
    outside = [site for site in mandatory if sites and site not in sites]
    if outside:
        raise ConfigurationError(f"{', '.join(outside)} is mandatory, but does not take part; add it to --sites")
    meta, values = dict(job.meta), dict[Key, Any]()
    if sites:
        app = next(iter(meta["deploy_map"]))
        meta["deploy_map"] = {app: ["server", *sites]}
    if mandatory:
        # FLARE's list decides where the job is deployed, the controller's whether the run starts.
        meta["mandatory_clients"] = list(mandatory)
        values["controller", "mandatory_sites"] = list(mandatory)
    if min_sites is not None:
        values["controller", "min_sites"] = min_sites
    changed = replace(job.with_values(values), meta=meta)
    if sites and len(sites) < changed.min_sites:
        raise ConfigurationError(
            f"the job needs {changed.min_sites} sites, but only {', '.join(sites)} take part; set --min-sites"
        )
    return changed


def with_gpu_memory(job: Job, gpu_memory: Mapping[str, float]) -> Job:
    """A copy of the job that reserves a part of a GPU at some sites; elsewhere it shares the GPU with other jobs.

    FLARE gives this memory (in GiB, by site) to no other job, and checks that the site has it.
    """
    reserved = {site: {"num_of_gpus": 1, "mem_per_gpu_in_GiB": memory} for site, memory in gpu_memory.items()}
    return replace(job, meta={**job.meta, "resource_spec": {**job.meta.get("resource_spec", {}), **reserved}})


def with_statement(job: Job) -> Job:
    """A copy of a checked job whose ``meta.json`` has its disclosure and releases, so that each site gets them."""
    properties = {**job.meta.get("custom_props", {}), "statement": disclosure(job), RELEASES: releases_of(job)}
    return replace(job, meta={**job.meta, "custom_props": properties})


def require_gpu_sites(job: Job, connected: Collection[str]) -> None:
    """Check, before the first submission, that every site at which the job reserves a GPU takes part.

    Args:
        job: names its sites, or takes all connected ones.
        connected: the connected sites; empty if they are not known.

    Raises:
        ConfigurationError: naming the sites that do not take part.
    """
    named = job.sites
    taking_part = named or sorted(connected)
    absent = sorted(set(job.meta.get("resource_spec", {})).difference(taking_part, [EVERY_SITE]))
    if absent and taking_part:
        what = "does not take part" if named else "is not connected"
        raise ConfigurationError(
            f"the job reserves a GPU (--gpu-memory, resource_spec) at {', '.join(absent)}, which {what} "
            f"({', '.join(taking_part)})"
        )


def require_roster(job: Job, connected: Collection[str]) -> None:
    """Check that the sites that a job needs are connected.

    Raises:
        GrandRoundsError: naming the sites that are missing.
    """
    named = job.sites
    missing = [site for site in job.meta.get("mandatory_clients", ()) if site not in connected]
    if missing:
        raise GrandRoundsError(
            f"{', '.join(missing)} is mandatory and not connected (connected: {', '.join(connected) or 'none'}); "
            "ask its administrator to run grandrounds doctor --kit"
        )
    available = [site for site in (named or connected) if site in connected]
    if len(available) < job.min_sites:
        raise GrandRoundsError(
            f"the job needs {job.min_sites} sites, {len(available)} are connected ({', '.join(available) or 'none'}); "
            "wait for the others"
        )


def submit_and_watch(
    kit: Kit, job: Job, out: Path, report: Report, attempts: int = 1, patience: float = RECONNECT_SECONDS
) -> Outcome:
    """Submit a job, watch it, download its results, and submit it again until the run has finished.

    A resubmitted job resumes after its last complete round, because its ``run_name`` is the same. As long as attempts
    remain, a job is stopped when a site is back that FLARE does not let into the running job. Attempts that complete no
    further round are followed by longer and longer pauses.

    Args:
        kit: of a person who may submit.
        job: a checked job.
        out: gets a folder with the results of each attempt, named by FLARE's id.
        report: called with a line whenever something has changed.
        attempts: maximum number of submissions.
        patience: seconds to wait for a lost server or lost sites.

    Raises:
        GrandRoundsError: if the server cannot be reached or refuses the job, or a required site stays away.
    """
    jobs: list[str] = []
    done, failures = 0, 0
    while True:
        with tempfile.TemporaryDirectory(prefix="grandrounds-") as temporary:
            folder = add_manifests(write_job(with_statement(job), Path(temporary) / job.name))
            waiting = Patience(report, patience if jobs else 0.0, JOB_POLL_SECONDS)
            jobs.append(waiting.result_of(partial(_submit, kit, job, folder)))
        report(f"submitted as {jobs[-1]} (attempt {len(jobs)} of {attempts})")
        status = _watch(kit, jobs[-1], report, patience, rejoin=len(jobs) < attempts)
        waiting = Patience(report, patience, JOB_POLL_SECONDS)
        outcome = waiting.result_of(partial(_collect, kit, tuple(jobs), status, out))
        report(f"job {jobs[-1]} has ended: {status}; the run: {outcome.summary.get('status', 'left no summary')}")
        ended = outcome.finished or outcome.final or (outcome.not_taken and not outcome.in_use)
        if ended or len(jobs) >= attempts:
            return outcome
        if not outcome.in_use:  # a further attempt goes on from the newest checkpoint
            job = job.with_values({("controller", "resume_from"): None})
        reached = done if outcome.in_use else int(outcome.summary.get("rounds_done", done))
        failures, done = (0, reached) if reached > done or status == JOB_LOST else (failures + 1, done)
        if reason := outcome.summary.get("reason"):
            report(f"the reason: {reason}")
        if failures:
            pause = pause_after(failures, RETRY_PAUSES)
            report(f"no further round was completed; the next attempt is in {pause:g} s")
            time.sleep(pause)


def _submit(kit: Kit, job: Job, folder: Path) -> str:
    """Submit, if enough sites are connected."""
    with admin_session(kit) as session:
        require_roster(job, connected_sites(session))
        return str(session.submit_job(str(folder)))


def _watch(kit: Kit, job: str, report: Report, patience: float, rejoin: bool) -> str:
    """FLARE's final status of a job, or ``lost``; waits for a lost server."""
    watcher, waiting = _Watcher(job, report, rejoin), Patience(report, patience, JOB_POLL_SECONDS)

    def look_until_the_end() -> str:
        try:
            with admin_session(kit) as session:
                while not (status := watcher.look(session)):
                    waiting.renew()
                    time.sleep(JOB_POLL_SECONDS)
                return status
        except NoSuchJob:
            report(f"the server does not know {job} any more; was it restored from an archive?")
            return JOB_LOST

    return waiting.result_of(look_until_the_end)


class _Watcher:
    """Observes a job, reports what is new, and stops the job when a site is back."""

    def __init__(self, job: str, report: Report, rejoin: bool) -> None:
        self.job, self.report, self.rejoin = job, report, rejoin
        self._life, self._sites = JobWatch(job), SiteWatch(job)
        self._reported: set[str] = set()
        self._state = ""

    def look(self, session: Session) -> str:
        """FLARE's final status of the job, ``lost``, or an empty string while it continues."""
        meta = session.get_job_meta(self.job)
        status = str(meta.get("status", ""))
        alive = [entry.job_id for entry in session.get_system_info().job_info]
        state = self._life.observe(status, alive, time.monotonic())
        if state in ("ended", JOB_LOST):
            return status if state == "ended" else state
        for site, reason in refusals(meta).items():
            self._report_once(f"{site} has not accepted the job: {reason}")
        running = self.job in alive
        statistics = run_statistics(session, self.job) if running else {}
        self._report_change(_progress(statistics) if running else status)
        for remark in statistics.get("remarks", ()):
            self._report_once(remark)
        if running and self.rejoin:
            self._stop_for_returned_sites(session)
        return ""

    def _report_change(self, state: str) -> None:
        if state and state != self._state:
            self.report(state)
            self._state = state

    def _report_once(self, line: str) -> None:
        if line not in self._reported:
            self._reported.add(line)
            self.report(line)

    def _stop_for_returned_sites(self, session: Session) -> None:
        if back := self._sites.observe(_client_status(session), time.monotonic()):
            self.rejoin = False
            self.report(f"{', '.join(back)} is back; the job is stopped, to continue with all sites")
            session.abort_job(self.job)


def _client_status(session: Session) -> list[dict[str, Any]]:
    """FLARE's report on its clients; empty if none answers."""
    try:
        return session.get_client_job_status() or []
    except Exception:  # a client has just ended; the next observation follows
        return []


def _progress(statistics: Mapping[str, Any]) -> str:
    """The controller's round, and the sites that work on a task."""
    if not statistics.get("round"):
        return ""
    # After the last round come scores and tests.
    number, rounds = statistics["round"], statistics["rounds"]
    done = f"round {number} of {rounds}" if number <= rounds else "testing"
    # A task that no site has fetched yet has no sites.
    tasks = [
        f"waiting for {', '.join(sites)} ({name})" for name, sites in (statistics.get("tasks") or {}).items() if sites
    ]
    return "; ".join([done, *tasks, *(f"{site} is {words}" for site, words in absences(statistics).items())])


def _collect(kit: Kit, jobs: tuple[str, ...], status: str, out: Path) -> Outcome:
    if status == JOB_LOST:
        return Outcome(jobs, status)  # FLARE returns no results of a job whose status is running
    out.mkdir(parents=True, exist_ok=True)
    try:
        with admin_session(kit) as session:
            refused = refusals(session.get_job_meta(jobs[-1]))
            location = session.download_job_result(jobs[-1], str(out.absolute()))
    except NoSuchJob:
        return Outcome(jobs, JOB_LOST)
    download = Path(location) if location else None
    return Outcome(jobs, status, summary_in(download) if download else {}, download, refused)
