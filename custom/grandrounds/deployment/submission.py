"""Submitting a job to a federation: who must be there, watching it, its result, and going on after a failure."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nvflare.fuel.flare_api.flare_api import Session

from grandrounds.deployment.job_watch import JobWatch, SiteWatch, admin_session, connected_sites, refusals, summary_in
from grandrounds.deployment.jobs import Job, write_job
from grandrounds.deployment.kit.read import Kit
from grandrounds.errors import ConfigurationError, GrandRoundsError

POLL_SECONDS = 2.0
RECONNECT_SECONDS = 180.0
FOR_ALL = "@default"
"""FLARE's key of what a job takes at every site."""

Tell = Callable[[str], None]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Outcome:
    """How a submitted run ended.

    Attributes:
        jobs: FLARE's ids, the last attempt's at the end.
        status: FLARE's of the last attempt; ``lost`` if its server died.
        summary: the run's own; empty if it left none.
        download: folder with the last attempt's results; None if there was nothing to get.
        refused: sites that have not taken the last attempt's job, with their reasons.
    """

    jobs: tuple[str, ...]
    status: str
    summary: dict[str, Any] = field(default_factory=dict)
    download: Path | None = None
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether all rounds were done and a model was selected; FLARE's status does not decide it."""
        return self.summary.get("status") == "finished"


def with_roster(job: Job, sites: Sequence[str] = (), mandatory: Sequence[str] = (), least: int | None = None) -> Job:
    """A copy of the job for certain sites.

    Args:
        job: stays as it is.
        sites: who takes part; none for every site.
        mandatory: who must be there for the job to start.
        least: fewest sites; None leaves what the job says.

    Raises:
        ConfigurationError: if a mandatory site does not take part, or the sites are fewer than must be there.
    """
    outside = [site for site in mandatory if sites and site not in sites]
    if outside:
        raise ConfigurationError(f"{', '.join(outside)} must be there, but does not take part; add it to --sites")
    changed = copy.deepcopy(job)
    meta = dict(changed.meta)
    if sites:
        app = next(iter(meta["deploy_map"]))
        meta["deploy_map"] = {app: ["server", *sites]}
    if mandatory:
        # FLARE's list decides where the job is deployed, the controller's whether the run starts.
        meta["mandatory_clients"] = list(mandatory)
        changed.options("controller")["mandatory_sites"] = list(mandatory)
    if least is not None:
        changed.options("controller")["min_sites"] = least
    needed = int(changed.options("controller").get("min_sites", 1))
    if sites and len(sites) < needed:
        raise ConfigurationError(
            f"the job needs {needed} sites, but only {', '.join(sites)} take part; set --min-sites"
        )
    return replace(changed, meta=meta)


def with_gpu_memory(job: Job, gpu_memory: Mapping[str, float]) -> Job:
    """A copy of the job that takes a part of a GPU at some sites; elsewhere it takes what it finds, as other jobs do.

    Args:
        job: stays as it is.
        gpu_memory: in GiB, by site. FLARE gives no other job this memory, and sees to it that the site has it.
    """
    asked = {site: {"num_of_gpus": 1, "mem_per_gpu_in_GiB": memory} for site, memory in gpu_memory.items()}
    return replace(job, meta={**job.meta, "resource_spec": {**job.meta.get("resource_spec", {}), **asked}})


def require_gpu_sites(job: Job, connected: Collection[str]) -> None:
    """Check, before a job is first submitted, that every site whose GPU it asks for takes part in it.

    Args:
        job: it names its sites, or goes to all that are connected.
        connected: empty if that is not known.

    Raises:
        ConfigurationError: naming the others.
    """
    named = _named_sites(job)
    taking_part = named or sorted(connected)
    strangers = sorted(set(job.meta.get("resource_spec", {})).difference(taking_part, [FOR_ALL]))
    if strangers and taking_part:
        what = "does not take part" if named else "is not connected"
        raise ConfigurationError(
            f"the job asks for a GPU (--gpu-memory, resource_spec) at {', '.join(strangers)}, which {what} "
            f"({', '.join(taking_part)})"
        )


def require_roster(job: Job, connected: Collection[str]) -> None:
    """Check that the sites which a job needs are connected.

    Raises:
        GrandRoundsError: naming the sites that are missing.
    """
    named = _named_sites(job)
    missing = [site for site in job.meta.get("mandatory_clients", ()) if site not in connected]
    if missing:
        raise GrandRoundsError(
            f"{', '.join(missing)} must be there and is not connected (connected: {', '.join(connected) or 'none'}); "
            "ask its administrator to run grandrounds doctor --kit"
        )
    there = [site for site in (named or connected) if site in connected]
    least = int(job.options("controller").get("min_sites", 1))
    if len(there) < least:
        raise GrandRoundsError(
            f"the job needs {least} sites, {len(there)} are connected ({', '.join(there) or 'none'}); wait for the others"
        )


def _named_sites(job: Job) -> list[str]:
    """Those that a job is deployed to; none if it is to all."""
    deployed = [site for sites in job.meta["deploy_map"].values() for site in sites]
    return [site for site in deployed if site not in ("@ALL", "server")]


def submit_and_watch(
    kit: Kit, job: Job, out: Path, tell: Tell, attempts: int = 1, patience: float = RECONNECT_SECONDS
) -> Outcome:
    """Submit a job, watch it, download its result, and submit it again while it has not finished.

    A job that is submitted again goes on after its last complete round, because its ``run_name`` is the same. While it may
    be submitted again it is stopped when a site comes back that FLARE does not let into the running job.

    Args:
        kit: of a person who may submit.
        job: checked.
        out: the results of each attempt get a folder in it, named by FLARE's id.
        tell: is called with a line whenever something has changed.
        attempts: how often the job may be submitted in all.
        patience: seconds to wait for a server, or for sites, that have gone.

    Raises:
        GrandRoundsError: if the server cannot be reached or refuses the job, or a site that is needed stays away.
    """
    jobs: list[str] = []
    while True:
        with tempfile.TemporaryDirectory(prefix="grandrounds-") as temporary:
            folder = write_job(job, Path(temporary) / job.name)
            jobs.append(_patiently(partial(_submit, kit, job, folder), tell, patience if jobs else 0.0))
        tell(f"submitted as {jobs[-1]} (attempt {len(jobs)} of {attempts})")
        status = _watch(kit, jobs[-1], tell, patience, rejoin=len(jobs) < attempts)
        outcome = _patiently(partial(_collect, kit, tuple(jobs), status, out), tell, patience)
        tell(f"job {jobs[-1]} has ended: {status}; the run: {outcome.summary.get('status', 'left no summary')}")
        if outcome.finished or len(jobs) >= attempts:
            return outcome


def _submit(kit: Kit, job: Job, folder: Path) -> str:
    """Submit, if enough sites are there."""
    with admin_session(kit) as session:
        require_roster(job, connected_sites(session))
        return str(session.submit_job(str(folder)))


def _patiently(act: Callable[[], Result], tell: Tell, patience: float) -> Result:
    """What an action gives, tried again and again for so many seconds while the server or a site that is needed is away."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return act()
        except ConfigurationError:
            raise
        except GrandRoundsError as error:
            if time.monotonic() >= deadline:
                raise
            tell(f"waiting: {error}")
            time.sleep(POLL_SECONDS)


def _watch(kit: Kit, job: str, tell: Tell, patience: float, rejoin: bool) -> str:
    """FLARE's final status of a job, or ``lost``; a server that goes away is waited for."""
    watcher = _Watcher(job, tell, rejoin)
    deadline = time.monotonic() + patience
    while True:
        try:
            with admin_session(kit) as session:
                while not (status := watcher.look(session)):
                    deadline = time.monotonic() + patience
                    time.sleep(POLL_SECONDS)
                return status
        except GrandRoundsError as error:
            if time.monotonic() >= deadline:
                raise
            tell(f"waiting for the server: {error}")
            time.sleep(POLL_SECONDS)


class _Watcher:
    """Looks at a job again and again, tells what is new, and stops the job when a site has come back."""

    def __init__(self, job: str, tell: Tell, rejoin: bool) -> None:
        self.job, self.tell, self.rejoin = job, tell, rejoin
        self._life, self._sites = JobWatch(job), SiteWatch(job)
        self._told: set[str] = set()
        self._news = ""

    def look(self, session: Session) -> str:
        """FLARE's final status of the job, ``lost``, or nothing while it goes on."""
        meta = session.get_job_meta(self.job)
        status = str(meta.get("status", ""))
        alive = [entry.job_id for entry in session.get_system_info().job_info]
        state = self._life.observe(status, alive, time.monotonic())
        if state in ("ended", "lost"):
            return status if state == "ended" else state
        for site, reason in refusals(meta).items():
            if site not in self._told:
                self._told.add(site)
                self.tell(f"{site} has not taken the job: {reason}")
        at_work = self.job in alive
        self._say(_progress(session, self.job) if at_work else status)
        if at_work and self.rejoin:
            self._stop_for_those_back(session)
        return ""

    def _say(self, news: str) -> None:
        if news and news != self._news:
            self.tell(news)
            self._news = news

    def _stop_for_those_back(self, session: Session) -> None:
        if back := self._sites.observe(_at_work(session), time.monotonic()):
            self.rejoin = False
            self.tell(f"{', '.join(back)} has come back; the job is stopped, to go on with all sites")
            session.abort_job(self.job)


def _at_work(session: Session) -> list[dict[str, Any]]:
    """What FLARE's clients say that they are doing; nothing if none answers."""
    try:
        return session.get_client_job_status() or []
    except Exception:  # a client that has just gone can be asked again
        return []


def _progress(session: Session, job: str) -> str:
    """What the server's controller says of its round, and of the sites that are at work."""
    try:
        stats = session.show_stats(job, "server").get("server", {})
    except Exception:  # the job is starting, or ending; what it is doing can be asked again
        return ""
    groups = stats.values() if isinstance(stats, dict) else ()
    found: dict[str, Any] = {}
    for group in groups:
        found |= group if isinstance(group, dict) else {}
    if not found.get("round"):
        return ""
    # After the last round come scores and tests.
    number, rounds = found["round"], found["rounds"]
    done = f"round {number} of {rounds}" if number <= rounds else "testing"
    # By FLARE's account a task that nobody has fetched yet has no site.
    tasks = [f"{name}: {', '.join(sites)}" for name, sites in (found.get("tasks") or {}).items() if sites]
    return "; ".join([done, *tasks])


def _collect(kit: Kit, jobs: tuple[str, ...], status: str, out: Path) -> Outcome:
    if status == "lost":
        return Outcome(jobs, status)  # FLARE gives nothing away of a job that it believes to be running
    out.mkdir(parents=True, exist_ok=True)
    with admin_session(kit) as session:
        refused = refusals(session.get_job_meta(jobs[-1]))
        location = session.download_job_result(jobs[-1], str(out.absolute()))
    download = Path(location) if location else None
    return Outcome(jobs, status, summary_in(download) if download else {}, download, refused)
