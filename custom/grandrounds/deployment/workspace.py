"""The folder of a simulated run: what is in it, its log, and that no other run takes its place without being asked to."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.data.site import locate_dataset
from grandrounds.deployment.jobs import Job, load_job
from grandrounds.deployment.presets import assignment, shown
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.server.record import EVENTS, SUMMARY
from grandrounds.files import exclusive, read_json_object, write_json
from grandrounds.option_keys import option_types
from grandrounds.options import groups_of
from grandrounds.protocol.paths import CACHE_VARIABLE

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SITES_FILE = "sites.json"
"""The sites of a workspace's run, each with the digest of its manifest."""
_OCCUPIED = "another command is running in this workspace; wait for it, or choose another workspace"
OF_ANY_RUN = ("run_name", "seed")
"""Options of the controller that identify a run beside those of a group that does."""


@dataclass(frozen=True)
class RecordSnapshot:
    """The state of a record before a run, to distinguish this run's results from those of earlier ones.

    Attributes:
        summary: time of ``summary.json``, in nanoseconds; 0 if there was none.
        events: size of ``events.jsonl``, in bytes.
    """

    summary: int
    events: int

    @classmethod
    def of(cls, record: Path) -> RecordSnapshot:
        """The state of a record now."""
        summary, events = record / SUMMARY, record / EVENTS
        written = summary.stat().st_mtime_ns if summary.is_file() else 0
        return cls(written, events.stat().st_size if events.is_file() else 0)

    def newer_summary(self, record: Path) -> dict[str, Any]:
        """The summary, if it was written since; else an empty dictionary."""
        path = record / SUMMARY
        fresh = path.is_file() and path.stat().st_mtime_ns != self.summary
        return dict(json.loads(path.read_text(encoding="utf-8"))) if fresh else {}

    def newer_failure(self, record: Path) -> str:
        """The reason in the last ``failed`` event that was appended since; else an empty string."""
        path = record / EVENTS
        content = path.read_bytes() if path.is_file() else b""
        # A run that starts from the beginning has a new file.
        new = content[self.events :] if len(content) >= self.events else content
        events = [json.loads(line) for line in new.splitlines()]
        return next((str(event["reason"]) for event in reversed(events) if event["event"] == "failed"), "")


@dataclass(frozen=True)
class Simulation:
    """The folders of a simulated run below the user's workspace."""

    workspace: Path
    run_name: str

    @property
    def flare(self) -> Path:
        """Root of the FLARE workspaces; the simulator empties it when it starts."""
        return self.workspace / "flare"

    @property
    def state(self) -> Path:
        """Checkpoints and other state of all parties."""
        return self.workspace / "state"

    @property
    def record(self) -> Path:
        """The server's folder of the run: events, summary, models."""
        return self.state / self.run_name / "server"

    @property
    def results(self) -> Path:
        """The results: summary, models, predictions of all sites."""
        return self.workspace / "results"

    @property
    def log(self) -> Path:
        """The log of the last run."""
        return self.workspace / "run.log"

    @property
    def job(self) -> Path:
        """The job as it ran."""
        return self.workspace / "job"

    @property
    def begun(self) -> bool:
        """Whether a run has left something here."""
        return (self.job / "meta.json").is_file() and (self.state.is_dir() or (self.results / SUMMARY).is_file())


def image_cache(workspace: Path, sites_dir: Path | None) -> Path:
    """The folder of decoded images: that of the environment; else one beside the partition, for all runs on it.

    It is in the workspace where there is no partition, or nothing can be written beside it.
    """
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named).absolute()
    if sites_dir and os.access(sites_dir.absolute().parent, os.W_OK):
        return sites_dir.absolute().with_name(f"{sites_dir.absolute().name}.cache")
    return workspace.absolute() / "cache"


def make_workspace(workspace: Path) -> None:
    """Make the folder of a run.

    Raises:
        ConfigurationError: if that cannot be.
    """
    if workspace.exists() and not workspace.is_dir():
        raise ConfigurationError(f"{workspace} is not a folder; choose another workspace")
    try:
        workspace.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{workspace} cannot be made ({error.strerror}); choose another workspace") from error


def take_workspace(job: Job, run: Simulation, sites: Sequence[str], sites_dir: Path | None) -> None:
    """Take a workspace for a run: a new one, or that of the same run, which goes on.

    More rounds, and options that leave the model as it is, are the same run; so is ``resume=never``, which starts again.

    Raises:
        ConfigurationError: if another run is there; the first thing that differs is named with both values. Nothing is
            written then.
    """
    require_own(job, run, sites, sites_dir)
    write_json(run.workspace / SITES_FILE, _inputs(job, sites, sites_dir))


def require_own(job: Job, run: Simulation, sites: Sequence[str], sites_dir: Path | None) -> None:
    """Check that a workspace is new, or of this very run, as :func:`take_workspace` does."""
    now = _inputs(job, sites, sites_dir)
    kept = run.workspace / SITES_FILE
    if run.begun and job.value("controller", "resume") != "never":
        before = read_json_object(kept) if kept.is_file() else now
        if changes := [*_changed_options(job, _earlier(run)), *_changed_sites(now, before)]:
            raise ConfigurationError(
                f"{run.workspace} has another run, which stays as it is: {changes[0]}; choose another workspace, or add "
                "--overwrite (overwrite=True) to move that run aside"
            )


def move_aside(workspace: Path) -> Path | None:
    """Give the run in a workspace another name, ``WORKSPACE.1`` or the next that is free.

    Returns:
        Its new folder; None if there is no run.
    """
    if not Simulation(workspace, "").begun:
        return None
    number = 1
    while (aside := workspace.with_name(f"{workspace.name}.{number}")).exists():
        number += 1
    return workspace.rename(aside)


@contextmanager
def held_workspace(workspace: Path, overwrite: bool = False) -> Iterator[Path | None]:
    """Hold a workspace for one command, so that nothing of a run changes while another command works on it.

    Args:
        workspace: it is made when missing.
        overwrite: move a run that is there aside.

    Yields:
        Where that run is now.

    Raises:
        ConfigurationError: if another command is running there.
    """
    make_workspace(workspace)
    with ExitStack() as held:
        held.enter_context(exclusive(workspace, _OCCUPIED))
        aside = move_aside(workspace) if overwrite else None
        if aside:
            held.enter_context(exclusive(workspace, _OCCUPIED))
        yield aside


def _earlier(run: Simulation) -> Job:
    try:
        return load_job(run.job)
    except GrandRoundsError as error:
        raise ConfigurationError(
            f"{run.job} is not a job of this version: choose another workspace ({error})"
        ) from error


def _changed_options(job: Job, earlier: Job) -> Iterator[str]:
    """What differs between two jobs of one workspace, in words."""
    for part in ("controller", "executor"):
        now, before = job.component(part), earlier.component(part)
        if now is not before:
            yield f"the method was {earlier.name}, is {job.name}"
            return
        groups = [group for group in groups_of(now).values() if group.identifies_run]
        names = {name for group in groups for name in option_types(group)} | {*OF_ANY_RUN}
        yield from _changed(part, job.options(part), earlier.options(part), names)
    problem, other = job.options("problem"), earlier.options("problem")
    yield from _changed("problem", problem, other, problem.keys() | other.keys())


def _changed(part: str, now: Mapping[str, Any], before: Mapping[str, Any], names: set[str]) -> Iterator[str]:
    for name in sorted(names & now.keys() & before.keys()):
        if now[name] != before[name]:
            yield f"{assignment((part, name), before[name])} there, {shown(now[name])} here"


def _inputs(job: Job, sites: Sequence[str], sites_dir: Path | None) -> dict[str, str]:
    """By site the digest of its manifest; an empty text for synthetic images, and where there is no manifest."""
    digests = dict.fromkeys(sites, "")
    if sites_dir is None:
        return digests
    for site in sites:
        with suppress(GrandRoundsError):  # which the run itself reports
            manifest = locate_dataset(site, job.options("problem")["dataset"], [sites_dir]).manifest
            digests[site] = hashlib.sha256(manifest.read_bytes()).hexdigest()
    return digests


def _changed_sites(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    if now.keys() != before.keys():
        yield f"its sites were {', '.join(before)}, are {', '.join(now)}"
    for site, digest in now.items():
        if digest != before.get(site, digest):
            yield f"the manifest of {site} is another"


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Write the log of the block to a file and nowhere else; an existing file is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    root = logging.getLogger()
    before, level_before = list(root.handlers), root.level
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level_before)
        handler.close()
