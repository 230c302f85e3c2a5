"""Running a job on one machine: in one process for speed, or in FLARE's own simulator for fidelity."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grandrounds.data.partition_files import read_partition
from grandrounds.deployment.jobs import PACKAGE, Job, check_job, write_job
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.in_process import run_in_process
from grandrounds.federation.places import SITES_VARIABLE, STATE_VARIABLE
from grandrounds.federation.record import SUMMARY
from grandrounds.federation.site_data import CACHE_VARIABLE
from grandrounds.files import write_json
from grandrounds.ordering import natural_sorted

Engine = Literal["in-process", "flare"]


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


def sites_of(partition: Path) -> tuple[list[str], dict[str, Any]]:
    """The sites of a partition and the problem's options that follow from it (data set and vocabulary).

    Raises:
        DataError: if the folder is no partition, or a manifest is not the one it was made with.
    """
    description = read_partition(partition)
    sites = [site for site in natural_sorted(description["sites"]) if site != "server"]
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
        threads: sites at work at once, under ``flare`` (default: all). With fewer threads than sites FLARE starts a process
            for every task of every site.
        wire: pass messages through FLARE's serialiser, ``in-process``.

    Returns:
        The summary, as in ``<workspace>/results/summary.json``.

    Raises:
        ConfigurationError: if the job does not fit together.
        GrandRoundsError: if the run failed; the message says why and where the log is.
    """
    check_job(job)
    place = Simulation(workspace.absolute(), str(job.options("controller").get("run_name", "run")))
    folder = write_job(job, place.workspace / "job")
    variables = {
        STATE_VARIABLE: str(place.state),
        CACHE_VARIABLE: os.environ.get(CACHE_VARIABLE, str(place.workspace / "cache")),
        **({SITES_VARIABLE: str(sites_dir.absolute())} if sites_dir else {}),
    }
    if engine == "flare":
        _run_flare(folder, place, sites, threads or len(sites), variables)
    else:
        with _environment(variables):
            run_in_process(folder, place.flare, sites, wire)
    return _collect(place, sites)


def allow_package(flare: Path) -> None:
    """Let FLARE build this package's classes in jobs that bring no code: the list lives in ``local/resources.json``."""
    write_json(
        flare / "local" / "resources.json", {"format_version": 2, "class_allow_list": ["grandrounds.", "nvflare."]}
    )


def _run_flare(job: Path, place: Simulation, sites: list[str], threads: int, variables: Mapping[str, str]) -> None:
    allow_package(place.flare)
    log = place.workspace / "flare.log"
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(job), "-w", str(place.flare)]
    command += ["-c", ",".join(sites), "-t", str(threads)]
    path = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("wb") as stream:
        code = subprocess.run(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables, "PYTHONPATH": path},
            cwd=place.workspace,
            check=False,
        ).returncode
    summary = _summary(place)
    if code != 0 or summary.get("status") != "finished":
        reason = summary.get("reason") or f"nvflare simulator ended with status {code}"
        raise GrandRoundsError(f"{reason}; the log is {log}")


def _collect(place: Simulation, sites: list[str]) -> dict[str, Any]:
    summary = _summary(place)
    if not summary:
        raise GrandRoundsError(f"the run left no summary in {place.record}")
    place.results.mkdir(parents=True, exist_ok=True)
    for path in place.record.iterdir():
        if path.suffix in (".json", ".jsonl", ".pt"):
            shutil.copyfile(path, place.results / path.name)
    for site in sites:
        for path in (place.state / place.run_name / site).glob("predictions_*.csv"):
            (place.results / site).mkdir(exist_ok=True)
            shutil.copyfile(path, place.results / site / path.name)
    return summary


def _summary(place: Simulation) -> dict[str, Any]:
    path = place.record / SUMMARY
    return dict(json.loads(path.read_text())) if path.is_file() else {}


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


def quiet_flare() -> None:
    """Keep FLARE's and our own information messages off the terminal; warnings stay."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
