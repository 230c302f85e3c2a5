"""Running a job on one machine: in one process for speed, or in FLARE's own simulator for fidelity."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grandrounds.data.partition.divide import SERVER
from grandrounds.data.partition.files import DESCRIPTION_FILE, read_partition
from grandrounds.deployment.jobs import PACKAGE, Job, check_job, write_job
from grandrounds.deployment.run_log import logging_to, run_logged
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.engine import run_in_process
from grandrounds.federation.paths import DETAILS_VARIABLE, SITES_VARIABLE, STATE_VARIABLE
from grandrounds.federation.server.record import EVENTS, SUMMARY
from grandrounds.federation.site.data import CACHE_VARIABLE
from grandrounds.files import write_json
from grandrounds.ordering import natural_sorted

Engine = Literal["in-process", "flare"]
CHECKPOINT_PREFIX = "round_"
SIMULATOR = ("nvflare.cli", "simulator")
WARM_SIMULATOR = ("grandrounds.deployment.warm_simulator",)
"""FLARE's simulator where it would start a program for every task."""


@dataclass(frozen=True)
class Earlier:
    """What earlier runs have left in a record, so that it is not taken for this run's.

    Attributes:
        summary: time of ``summary.json``, in nanoseconds; None if there was none.
        events: size of ``events.jsonl``, in bytes.
    """

    summary: int | None
    events: int

    @classmethod
    def of(cls, record: Path) -> Earlier:
        """Look at a record before the run."""
        summary, events = record / SUMMARY, record / EVENTS
        return cls(
            summary.stat().st_mtime_ns if summary.is_file() else None, events.stat().st_size if events.is_file() else 0
        )

    def newer_summary(self, record: Path) -> dict[str, Any]:
        """The summary, if it was written since; else nothing."""
        path = record / SUMMARY
        fresh = path.is_file() and path.stat().st_mtime_ns != self.summary
        return dict(json.loads(path.read_text(encoding="utf-8"))) if fresh else {}

    def newer_failure(self, record: Path) -> str:
        """The reason in the last ``failed`` event that was appended since; else nothing."""
        path = record / EVENTS
        content = path.read_bytes() if path.is_file() else b""
        # A run that starts again has begun a new file.
        new = content[self.events :] if len(content) >= self.events else content
        events = [json.loads(line) for line in new.splitlines()]
        return next((str(event["reason"]) for event in reversed(events) if event["event"] == "failed"), "")


@dataclass(frozen=True)
class Simulation:
    """Where a simulated run's files are.

    Attributes:
        workspace: the folder that the user named.
        run_name: of the job.
    """

    workspace: Path
    run_name: str

    @property
    def flare(self) -> Path:
        """Root of the FLARE workspaces; the simulator wipes it at its start."""
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
        """What the user wants to see: summary, models, predictions of all sites."""
        return self.workspace / "results"

    @property
    def log(self) -> Path:
        """What FLARE and the parties logged in the last run."""
        return self.workspace / "run.log"


def simulation_of(job: Job, workspace: Path) -> Simulation:
    """Where a run of this job in this workspace has its files."""
    return Simulation(workspace.absolute(), job.run_name)


def sites_of(partition: Path) -> tuple[list[str], dict[str, Any]]:
    """The sites of a partition and the problem's options that follow from it (data set and vocabulary).

    The folder ``server`` is no site: it holds images that the server itself has.

    Raises:
        ConfigurationError: if the folder is no partition.
        DataError: if it is damaged, or a manifest is not the one it was made with.
    """
    if not (partition / DESCRIPTION_FILE).is_file():
        raise ConfigurationError(
            f"{partition} is no partition: there is no {DESCRIPTION_FILE} in it; make one with grandrounds partition"
        )
    description = read_partition(partition)
    sites = [site for site in natural_sorted(description["sites"]) if site != SERVER]
    return sites, {"dataset": description["dataset_name"], "classes": description["classes"]}


def simulate(
    job: Job,
    workspace: Path,
    sites: list[str],
    sites_dir: Path | None = None,
    engine: Engine = "in-process",
    threads: int | None = None,
    wire: bool = False,
) -> dict[str, Any]:
    """Run a job to its end, or go on with one that was interrupted.

    Args:
        job: the job; its options are final.
        workspace: gets everything that the run writes. A second call with the same workspace resumes the run.
        sites: names of the sites.
        sites_dir: a partition's folder with one folder per site; None for the built-in phantoms.
        engine: ``in-process`` or ``flare``; both give the same models.
        threads: sites at work at once, under ``flare`` (default: all). With fewer threads than sites every task of every
            site has a process of its own (:mod:`~grandrounds.deployment.warm_simulator`).
        wire: pass messages through FLARE's serialiser, ``in-process``.

    Returns:
        The summary, as in ``<workspace>/results/summary.json``.

    Raises:
        ConfigurationError: if the job does not fit together, or has more ``min_sites`` than there are sites, or the
            workspace is no folder.
        GrandRoundsError: if the run failed; the message says why and where the log is.
    """
    check_job(job)
    least = job.options("controller").get("min_sites", 1)
    if len(sites) < least:
        raise ConfigurationError(
            f"job {job.name}: min_sites is {least}, but there are {len(sites)} sites; add sites or set "
            "controller.min_sites"
        )
    if workspace.exists() and not workspace.is_dir():
        raise ConfigurationError(f"{workspace} is no folder; choose another workspace")
    place = simulation_of(job, workspace)
    earlier = Earlier.of(place.record)
    folder = write_job(job, place.workspace / "job")
    variables = {
        STATE_VARIABLE: str(place.state),
        DETAILS_VARIABLE: "1",  # these sites are all on this machine
        CACHE_VARIABLE: os.environ.get(CACHE_VARIABLE, str(place.workspace / "cache")),
        **({SITES_VARIABLE: str(sites_dir.absolute())} if sites_dir else {}),
    }
    try:
        if engine == "flare":
            _run_flare(folder, place, sites, threads or len(sites), variables, earlier)
        else:
            with _environment(variables), logging_to(place.log):
                run_in_process(folder, place.flare, sites, wire)
    except GrandRoundsError:
        if earlier.newer_summary(place.record):
            _copy_record(place, (SUMMARY, EVENTS))
        raise
    return _collect(place, sites, earlier)


def allowed_classes() -> dict[str, Any]:
    """What a FLARE workspace's ``local/resources.json`` must say so that jobs may name this package's classes."""
    return {"format_version": 2, "class_allow_list": ["grandrounds.", "nvflare."]}


def allow_package(flare: Path) -> None:
    """Let FLARE build this package's classes in jobs that bring no code: the list lives in ``local/resources.json``."""
    write_json(flare / "local" / "resources.json", allowed_classes())


def _run_flare(
    job: Path, place: Simulation, sites: list[str], threads: int, variables: Mapping[str, str], earlier: Earlier
) -> None:
    allow_package(place.flare)
    program = SIMULATOR if threads >= len(sites) else WARM_SIMULATOR
    command = [sys.executable, "-m", *program, str(job), "-w", str(place.flare)]
    command += ["-c", ",".join(sites), "-t", str(threads)]
    path = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    code = run_logged(command, place.log, {**os.environ, **variables, "PYTHONPATH": path}, place.workspace)
    summary = earlier.newer_summary(place.record)
    if code != 0 or summary.get("status") != "finished":
        told = summary.get("reason") or earlier.newer_failure(place.record)
        reason = told or f"nvflare simulator ended with status {code}"
        raise GrandRoundsError(f"{reason}; the log is {place.log}")


def _collect(place: Simulation, sites: list[str], earlier: Earlier) -> dict[str, Any]:
    summary = earlier.newer_summary(place.record)
    if not summary:
        raise GrandRoundsError(f"the run left no summary in {place.record}")
    _copy_record(
        place,
        [
            path.name
            for path in place.record.iterdir()
            if path.suffix in (".json", ".jsonl", ".pt") and not path.name.startswith(CHECKPOINT_PREFIX)
        ],
    )
    for site in sites:
        for path in (place.state / place.run_name / site).glob("predictions_*.csv"):
            (place.results / site).mkdir(exist_ok=True)
            shutil.copyfile(path, place.results / site / path.name)
    return summary


def _copy_record(place: Simulation, names: Sequence[str]) -> None:
    place.results.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (place.record / name).is_file():
            shutil.copyfile(place.record / name, place.results / name)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def choose_sites(count: int | None, sites_dir: Path | None) -> tuple[list[str], dict[str, Any]]:
    """The sites to simulate, and the problem's options that follow from their data.

    Raises:
        ConfigurationError: if more sites are asked for than the partition has, or fewer than one.
    """
    if sites_dir is None:
        if count is not None and count < 1:
            raise ConfigurationError(f"--sites must be at least 1, got {count}")
        return [f"site-{number}" for number in range(1, (count or 4) + 1)], {}
    sites, problem = sites_of(sites_dir)
    if count is not None and not 1 <= count <= len(sites):
        raise ConfigurationError(f"--sites is {count}, but {sites_dir} has {len(sites)}")
    return sites[:count], problem
