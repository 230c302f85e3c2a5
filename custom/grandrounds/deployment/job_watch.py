"""A person's FLARE session with the server, and the state of a submitted job.

FLARE's status alone is not enough: it is RUNNING for jobs whose server process has died or that have lost a site.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    InternalError,
    InvalidJobDefinition,
    JobNotDone,
    JobNotFound,
    NoConnection,
    SessionClosed,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from grandrounds.deployment.kit.certificates import certificate_fault, days_left, not_yet_valid, read_certificate
from grandrounds.deployment.kit.read import Kit
from grandrounds.deployment.kit.signers import submitter_fault
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.endurance import outlive_slow_lines
from grandrounds.federation.proxy import replace_connect
from grandrounds.federation.server.record import SUMMARY
from grandrounds.files import read_json_object

WATCH_CONNECT_SECONDS = 10.0
COMMAND_SECONDS = 15.0
"""A busy server answers late; FLARE takes five seconds without an answer for a lost server."""


class NoSuchJob(GrandRoundsError):
    """The server does not know the job, and will not: it was deleted, or the server was restored from an archive."""


@contextmanager
def admin_session(kit: Kit, timeout: float = WATCH_CONNECT_SECONDS) -> Iterator[Session]:
    """Log in with a person's kit, and log out at the end.

    Raises:
        ConfigurationError: if the kit is not a person's.
        NoSuchJob: if a command in the block is about a job that the server does not know.
        GrandRoundsError: if the server cannot be reached, does not accept the person, or refuses a command in the block.
    """
    if kit.kind != "person":
        raise ConfigurationError(submitter_fault(kit))
    _require_certificate(kit)
    session = None
    try:
        session = _log_in(kit, timeout)
        yield session
    except (NoConnection, SessionClosed, FLCommunicationError) as error:
        raise GrandRoundsError(
            f"no connection to the server at {kit.host}:{kit.port} ({error}); is it running, and is the port open?"
        ) from error
    except AuthenticationError as error:
        raise GrandRoundsError(
            f"the server at {kit.host}:{kit.port} does not accept {kit.name} ({error}); the kit may be another project's"
        ) from error
    except AuthorizationError as error:
        raise GrandRoundsError(f"{kit.name} may not do this: {error}") from error
    except JobNotFound as error:
        raise NoSuchJob(f"the server refuses: {error}") from error
    except (InvalidJobDefinition, JobNotDone, InternalError, RuntimeError, TimeoutError) as error:
        raise GrandRoundsError(f"the server refuses: {error}") from error
    finally:
        if session is not None:
            _close(session)


def connected_sites(session: Session) -> list[str]:
    """Names of the sites that are connected to the server."""
    return sorted(client.name for client in session.get_system_info().client_info)


def run_statistics(session: Session, job: str) -> dict[str, Any]:
    """The statistics of a run by the controller of its job; empty while the job starts or ends, or has none of ours."""
    try:
        stats = session.show_stats(job, "server").get("server", {})
    except Exception:
        return {}
    groups = stats.values() if isinstance(stats, dict) else ()
    statistics: dict[str, Any] = {}
    for group in groups:
        statistics |= group if isinstance(group, dict) else {}
    return statistics


def _require_certificate(kit: Kit) -> None:
    """Make sure that the kit's certificates can be used; FLARE would end with a traceback.

    Raises:
        ConfigurationError: if one is damaged, out of date or of another project.
    """
    if fault := certificate_fault(kit):
        raise ConfigurationError(f"{kit.folder}: {fault}; ask the operator for the kit again")
    for path in (kit.certificate, kit.authority):
        certificate = read_certificate(path)
        if (left := days_left(certificate)) < 0:
            raise ConfigurationError(
                f"{path} expired {-left:.0f} days ago: ask the operator for a new certificate (grandrounds kit renew)"
            )
        if not_yet_valid(certificate):
            raise ConfigurationError(f"{path} becomes valid in the future: this machine's clock is slow; set it")


def _log_in(kit: Kit, timeout: float) -> Session:
    try:
        outlive_slow_lines()
        replace_connect()
        with _quiet():
            return new_secure_session(
                kit.name, str(kit.folder), timeout=timeout, command_timeout=COMMAND_SECONDS, auto_login_max_tries=1
            )
    except TypeError as error:
        # FLARE's serialiser registers its types once in a process; the server's certificate is lost if messages were
        # serialised here before.
        raise GrandRoundsError(
            f"the answer of the server at {kit.host}:{kit.port} cannot be read in this process, in which something else has "
            "used FLARE's serialiser before; try again in a new one"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep FLARE's remarks from the terminal; the error names the fault."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.NullHandler())
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def _close(session: Session) -> None:
    # The work is done: a lost server is no longer a reason to fail.
    with suppress(Exception), _quiet():
        session.unset_timeout()
        session.close()


State = Literal["waiting", "running", "ended", "lost"]
JOB_RUNNING, ENDED = "RUNNING", "FINISHED"
IDLE, ACCEPTED = "no_jobs", "OK"
FLARES_WORD = "NVFLARE_ERROR: "
"""Before what a site has said."""


@dataclass
class JobWatch:
    """Judges a job by successive observations.

    FLARE lists a job as running while its processes exist. The final status follows their end after some seconds; if it does
    not, the job has lost its server.

    Example:
        >>> watch = JobWatch("j", patience=20)
        >>> [watch.observe("RUNNING", alive, seconds) for alive, seconds in ((["j"], 0), ([], 5), ([], 30))]
        ['running', 'running', 'lost']
    """

    job: str
    """FLARE's id."""
    patience: float = 30.0
    """Seconds that a job may be RUNNING without any process."""
    _gone_since: float | None = None

    def observe(self, status: str, alive: Collection[str], seconds: float) -> State:
        """The state after an observation.

        Args:
            status: FLARE's, such as ``SUBMITTED`` or ``FINISHED:ABNORMAL``.
            alive: ids of the jobs that have processes at the server.
            seconds: time of the observation, by a monotonic clock.
        """
        if status.startswith(ENDED):
            return "ended"
        if status != JOB_RUNNING:
            self._gone_since = None
            return "waiting"
        if self.job in alive:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = seconds
        gone = self._gone_since is not None and seconds - self._gone_since >= self.patience
        return "lost" if gone else "running"


@dataclass
class SiteWatch:
    """Finds sites that worked in a job, were restarted, and are idle while other sites still work.

    FLARE does not let a site back into a running job, only into the next one. At a job's end its sites stop one after
    another, so a site counts only after a while, and only while another one works.

    Example:
        >>> watch = SiteWatch("j", patience=10)
        >>> both = [{"client_name": "a", "job_id": "j"}, {"client_name": "b", "job_id": "j"}]
        >>> one = [{"client_name": "a", "job_id": "j"}, {"client_name": "b", "status": "no_jobs"}]
        >>> [watch.observe(seen, seconds) for seen, seconds in ((both, 0), (one, 5), (one, 20))]
        [[], [], ['b']]
    """

    job: str
    """FLARE's id."""
    patience: float = 10.0
    """Seconds that a site must be idle."""
    _worked: set[str] = field(default_factory=set)
    _idle_since: dict[str, float] = field(default_factory=dict)

    def observe(self, entries: Iterable[Mapping[str, Any]], seconds: float) -> list[str]:
        """The sites that are back, from FLARE's report on its clients.

        Args:
            entries: one for each job of each client that answers.
            seconds: time of the observation, by a monotonic clock.
        """
        seen = list(entries)
        working = {str(entry["client_name"]) for entry in seen if entry.get("job_id") == self.job}
        idle = {str(entry["client_name"]) for entry in seen if entry.get("status") == IDLE}
        self._worked |= working
        self._idle_since = {site: self._idle_since.get(site, seconds) for site in self._worked & idle}
        if not working:
            return []
        return sorted(site for site, since in self._idle_since.items() if seconds - since >= self.patience)


def refusals(meta: Mapping[str, Any]) -> dict[str, str]:
    """The sites that have not accepted a job, with their reasons, from FLARE's record of its deployment.

    A site that refuses takes no part in the run, so the run's own record does not contain it.

    Example:
        >>> refusals({"job_deploy_detail": ["server: OK", "a: NVFLARE_ERROR: BYOC not permitted", "b: OK"]})
        {'a': 'BYOC not permitted'}
    """
    reported = (str(line).partition(": ") for line in meta.get("job_deploy_detail") or ())
    return {site: reason.removeprefix(FLARES_WORD) for site, _, reason in reported if reason and reason != ACCEPTED}


def summary_in(download: Path) -> dict[str, Any]:
    """The run's own summary in a downloaded job; empty if there is none, or an incomplete one.

    FLARE's status of a run that has lost a site is ABNORMAL although its model is fine; the summary has its results.
    """
    path = download / "workspace" / "results" / SUMMARY
    try:
        return read_json_object(path)
    except ConfigurationError:
        return {}
