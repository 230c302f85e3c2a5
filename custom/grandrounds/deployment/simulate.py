"""Running a job on one machine: in one process for speed, or in FLARE's own simulator for fidelity."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grandrounds.data.doctor import compare_sites
from grandrounds.data.fitness import require_healthy
from grandrounds.data.leaks import PICTURES, Looked, changed_pictures, keep_pictures, look
from grandrounds.data.partition.files import DESCRIPTION_FILE, sharing_of, sites_and_problem
from grandrounds.data.population import NOTHING_TO_DO, PROVENANCE, describe_population
from grandrounds.data.site import load_site_data, locate_dataset
from grandrounds.deployment.code_digest import PACKAGE
from grandrounds.deployment.disclosure import nothing_to_do
from grandrounds.deployment.jobs import Job, load_job, named_classes, write_job
from grandrounds.deployment.processes import run_logged, variables_set
from grandrounds.deployment.workspace import (
    RecordSnapshot,
    Simulation,
    image_cache,
    logging_to,
    make_workspace,
    take_workspace,
)
from grandrounds.errors import ConfigurationError, GrandRoundsError, UsageError
from grandrounds.extras import require_extra
from grandrounds.federation.engine import run_in_process
from grandrounds.federation.machine import available_memory, usable_cores
from grandrounds.federation.memory import give_back_freed_memory, keep_freed_memory
from grandrounds.federation.server.record import EVENTS, SUMMARY
from grandrounds.federation.site.context import choose_device
from grandrounds.federation.site.store import DIGESTS
from grandrounds.files import copy_file, read_json_object, write_json
from grandrounds.options import Min, require_type, require_value
from grandrounds.plugins import environment, outermost_packages
from grandrounds.protocol.names import Engine
from grandrounds.protocol.paths import (
    CACHE_VARIABLE,
    DETAILS_VARIABLE,
    SITES_VARIABLE,
    SOURCES_VARIABLE,
    STATE_VARIABLE,
)
from grandrounds.protocol.problem import Problem

CHECKPOINT_PREFIX = "round_"
SINGLE_SOURCE_SHARE = 0.95
"""Share of a site's images that are of its source, at least; an examination of two devices is at the site of one."""
WORKER_BYTES = 2 << 30
"""Memory to leave for each worker: EfficientNet-B0 takes 1.2 GB for a step of 16 images of 224 pixels."""


@dataclass(frozen=True)
class Execution:
    """How a job runs on one machine; its models do not depend on it.

    Attributes:
        engine: ``in-process``, or ``flare`` for FLARE's simulator with real processes and messages.
        threads: with ``flare``, the number of sites that work at the same time; by default all. With fewer threads than
            sites FLARE starts a program for every task, which takes seconds each.
        workers: with ``in-process``, the number of sites that train at the same time, each in a forked process; by default
            :func:`grandrounds.run` takes as many as there are cores and memory for.
        wire: with ``in-process``, pass messages through FLARE's serialiser.
        command: what was typed, for the record.
    """

    engine: Engine = "in-process"
    threads: int | None = None
    workers: int | None = None
    wire: bool = False
    command: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse what the engine does not have, or what is of another type, by a :class:`ConfigurationError`."""
        require_type(self.engine, Engine, "engine")
        require_value(self.threads, int | None, Min(1), "threads")
        require_value(self.workers, int | None, Min(1), "workers")
        if self.threads is not None and self.engine != "flare":
            raise UsageError("threads is for the engine flare; use workers")
        if self.workers is not None and self.engine == "flare":
            raise UsageError("workers is for the engine in-process; with flare use threads")
        if self.wire and self.engine == "flare":
            raise UsageError("wire is for the engine in-process: with flare all messages are serialised")


ONE_AFTER_ANOTHER = Execution(workers=1)


def simulate(
    job: Job,
    workspace: Path,
    sites: list[str],
    sites_dir: Path | None = None,
    execution: Execution = ONE_AFTER_ANOTHER,
    allow_overlap: bool = False,
    held_out: Sequence[str] = (),
    start: AbstractContextManager[None] | None = None,
) -> dict[str, Any]:
    """Run a job, or resume an interrupted run.

    Args:
        job: the job with its final options.
        workspace: gets everything that the run writes; a second call with the same workspace resumes the run, and another
            run is refused there.
        sites: names of the sites.
        sites_dir: a partition's folder with one folder per site; None for synthetic images.
        execution: how; without a number of workers one site trains after another.
        allow_overlap: go on where sites have pictures or patients in common; the provenance says which.
        held_out: sites of the partition that take no part, and whose pictures are compared with those of the others.
        start: entered around the training, after workspace and sites were checked.

    Returns:
        The summary, as in ``<workspace>/results/summary.json``.

    Raises:
        ConfigurationError: if the extra ``study`` is not installed, the job is inconsistent, ``min_sites`` exceeds the
            number of sites, or the workspace is no folder or has another run.
        DataError: if sites have pictures or patients in common.
        GrandRoundsError: if the run failed; the message names the reason and the log.
    """
    require_extra("study", "a simulation")
    keep_freed_memory()
    job = job.checked()
    require_enough(job, sites)
    make_workspace(workspace)
    run = Simulation(workspace.absolute(), job.run_name)
    goes_on = run.begun and job.value("controller", "resume") != "never"
    take_workspace(job, run, sites, sites_dir)
    before = RecordSnapshot.of(run.record)
    cache = image_cache(workspace, sites_dir)
    shared: list[str] = []
    if sites_dir:
        require_beside(job, sites, sites_dir)
        looked = look_at_sites(job, [*sites, *held_out], sites_dir, cache)
        shared = require_apart(looked, sites_dir, allow_overlap)
        _require_same_pictures(run, {site: looked[site] for site in sites if site in looked}, goes_on)
    variables = _variables(run, sites, sites_dir, str(cache))
    try:
        with start or nullcontext():
            folder = write_job(job, run.job)
            if execution.engine == "flare":
                _run_flare(folder, run, sites, execution.threads or len(sites), variables, before)
            else:
                with variables_set(variables), logging_to(run.log):
                    run_in_process(folder, run.flare, sites, execution.wire, execution.workers or 1)
    except GrandRoundsError:
        if before.newer_summary(run.record):
            _copy_record(run, (SUMMARY, EVENTS))
        raise
    summary = _collect(run, sites, before)
    write_provenance(run.results, sites, sites_dir, execution.command, shared, nothing_to_do(job, sites, sites_dir))
    give_back_freed_memory()
    return summary


def require_enough(job: Job, sites: Sequence[str]) -> None:
    """Refuse a job that asks for more sites than there are."""
    if len(sites) < job.min_sites:
        raise ConfigurationError(
            f"job {job.name}: min_sites is {job.min_sites}, but there are {len(sites)} sites; add sites, or add --set "
            f"controller.min_sites={len(sites)}"
        )


def _variables(run: Simulation, sites: Sequence[str], sites_dir: Path | None, cache: str) -> dict[str, str]:
    return {
        STATE_VARIABLE: str(run.state),
        DETAILS_VARIABLE: "1",  # these sites are all on this machine
        CACHE_VARIABLE: cache,
        **({SITES_VARIABLE: str(sites_dir.absolute())} if sites_dir else {}),
        SOURCES_VARIABLE: json.dumps(_sources(sites_dir, sites) if sites_dir else {}),
    }


def _sources(sites_dir: Path, sites: Sequence[str]) -> Mapping[str, str]:
    """The source of each site, if several sites are of one and there are others; nothing where a site's are mixed."""
    file = sites_dir / DESCRIPTION_FILE
    described = read_json_object(file)["sites"] if file.is_file() else {}
    named = {}
    for site in sites:
        counts = described.get(site, {}).get("sources", {})
        source = max(counts, key=counts.__getitem__, default="")
        if not source or counts[source] < SINGLE_SOURCE_SHARE * sum(counts.values()):
            return {}
        named[site] = source
    return named if 1 < len({*named.values()}) < len(sites) else {}


def require_beside(job: Job, sites: Sequence[str], sites_dir: Path) -> None:
    """Refuse, before an image is read, a method that needs images beside the sites' own if no site has them.

    Raises:
        ConfigurationError: naming the places of the first site.
    """
    option = getattr(job.component("executor"), "images_beside", None)
    name, missing = str(job.value("controller", option)) if option else "", list[str]()
    for site in sites if option else ():
        try:
            locate_dataset(site, name, [sites_dir])
        except ConfigurationError as error:
            missing.append(str(error))
    if option and len(missing) == len(sites):
        raise ConfigurationError(f"{missing[0]}; each site needs images under the name {name!r}, the same ones")


def look_at_sites(job: Job, sites: Sequence[str], sites_dir: Path, cache: Path) -> dict[str, Looked]:
    """The pictures of the sites as the job prepares them; those of a site that cannot be read are left to the run."""
    problem = Problem.from_dict(job.options("problem"))
    looked: dict[str, Looked] = {}
    for site in sites:
        with suppress(GrandRoundsError):
            location = locate_dataset(site, problem.dataset, [sites_dir])
            looked[site] = look(load_site_data(location, problem, cache), site, str(location.reading.windows))
    return looked


def require_apart(looked: Mapping[str, Looked], sites_dir: Path, allowed: bool) -> list[str]:
    """Compare the pictures and patients of the sites.

    Args:
        looked: the pictures.
        sites_dir: folder with one folder per site.
        allowed: whether sites may have pictures and patients in common.

    Returns:
        What they have in common, or seem to.

    Raises:
        DataError: if they have something in common that is not ``allowed``.
    """
    described = sites_dir / DESCRIPTION_FILE
    partition = read_json_object(described) if described.is_file() else {}
    findings = compare_sites(looked, sharing_of(partition), allowed)
    require_healthy(findings)
    return [finding.message for finding in findings if finding.level == "warning"]


def _require_same_pictures(run: Simulation, looked: Mapping[str, Looked], goes_on: bool) -> None:
    """Refuse a run that would go on with other pixels under the same names; keep those of a new one."""
    kept = run.workspace / PICTURES
    if not (goes_on and kept.is_file()):
        keep_pictures(kept, looked)
    elif changed := changed_pictures(kept, looked):
        raise ConfigurationError(
            f"{changed} images have changed since the run in {run.workspace} began, under the same names; put them back, "
            "choose another workspace, or add --overwrite (overwrite=True) to move that run aside"
        )


def default_workers(job: Job, sites: int) -> int:
    """How many sites of a simulation train at the same time: as many as there are cores and memory for; one on each GPU.

    Args:
        job: with its final options; ``executor.cpu_threads`` is how many cores each site takes.
        sites: their number.
    """
    device = job.value("executor", "device")
    cards = torch.cuda.device_count() if device == "auto" else int(device.startswith("cuda"))
    if sys.platform != "linux" or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 1  # CUDA does not survive a fork
    if cards:
        return max(1, min(sites, cards))
    threads = job.value("executor", "cpu_threads")
    cores = usable_cores() // (1 if threads == "auto" else threads)
    memory = available_memory()
    fitting = cores if memory is None else memory // WORKER_BYTES
    return max(1, min(sites, cores, fitting))


def device_of(job: Job) -> str:
    """The device that the sites of a simulation compute on, such as ``cpu`` or ``cuda, 2 GPUs``.

    The driver is asked for the number of GPUs without CUDA's initialization, which does not survive a fork.

    Raises:
        ConfigurationError: if it is not a device, or not here, or another than a GPU is to compute in ``tf32``.
    """
    named, cards = str(job.value("executor", "device")), torch.cuda.device_count()
    gpus = {
        "auto": f"cuda, {cards} GPU{'s' * (cards > 1)}",
        "cuda": "cuda:0",
        **{f"cuda:{number}": f"cuda:{number}" for number in range(cards)},
    }
    here = {"auto": "cpu", "cpu": "cpu", **(gpus if cards else {})}
    if here.get(named, "cpu") == "cpu":
        choose_device(named, str(job.value("executor", "precision")))
    return here.get(named, "cpu")


def simulated_classes(job: Job | None = None) -> dict[str, Any]:
    """The content of a FLARE workspace's ``local/resources.json``: classes of this package, of plug-ins and of a job."""
    named = named_classes([job.server, job.client]) if job else ()
    allowed = {"nvflare", *outermost_packages(), *(path.partition(".")[0] for path in named)}
    return {"format_version": 2, "class_allow_list": [f"{name}." for name in sorted(allowed)]}


def importable() -> dict[str, str]:
    """The variables with which a new process imports this package and the plug-ins of this process."""
    variables = environment()
    path = variables.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
    return {**variables, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), *filter(None, [path])])}


def _run_flare(
    job: Path, run: Simulation, sites: list[str], threads: int, variables: Mapping[str, str], before: RecordSnapshot
) -> None:
    paths = importable()
    write_json(run.flare / "local" / "resources.json", simulated_classes(load_job(job)))
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(job), "-w", str(run.flare)]
    command += ["-c", ",".join(sites), "-t", str(threads)]
    code = run_logged(command, run.log, {**os.environ, **paths, **variables}, run.workspace)
    summary = before.newer_summary(run.record)
    if code != 0 or summary.get("status") != "finished":
        reported = summary.get("reason") or before.newer_failure(run.record)
        reason = reported or f"nvflare simulator ended with status {code}"
        raise GrandRoundsError(f"{reason}; the log is {run.log}")


def _collect(run: Simulation, sites: list[str], before: RecordSnapshot) -> dict[str, Any]:
    summary = before.newer_summary(run.record)
    if not summary:
        raise GrandRoundsError(f"the run left no summary in {run.record}")
    files = [path for path in run.record.iterdir() if path.suffix in (".json", ".jsonl", ".pt")]
    _copy_record(run, [path.name for path in files if not path.name.startswith(CHECKPOINT_PREFIX)])
    for site in sites:
        own = run.state / run.run_name / site
        for path in (*own.glob("predictions_*.csv"), *own.glob(DIGESTS)):
            copy_file(path, run.results / site / path.name)
    return summary


def write_provenance(
    results: Path,
    sites: Sequence[str],
    sites_dir: Path | None,
    command: Sequence[str],
    shared: Sequence[str] = (),
    idle: str = "",
) -> None:
    """Write beside a simulation's summary what it was computed from: the command, and the data of its sites.

    ``shared`` is what the sites have in common, ``idle`` why the method has nothing of its own to do.

    Of an absolute path in the command only the last part is kept.

    These counts are exact, as all sites are on this machine; no file of a real federation has them.
    """
    partition = sites_dir is not None and (sites_dir / DESCRIPTION_FILE).is_file()
    described = describe_population(sites_dir, sites) if sites_dir and partition else None
    typed = [Path(part).name if part.startswith(os.sep) else part for part in command]
    content = {"simulated": True, "command": shlex.join(typed), "data": described}
    noted = {"shared_between_sites": list(shared), NOTHING_TO_DO: idle}
    write_json(results / PROVENANCE, content | {name: value for name, value in noted.items() if value})


def _copy_record(run: Simulation, names: Sequence[str]) -> None:
    for name in names:
        if (run.record / name).is_file():
            copy_file(run.record / name, run.results / name)


def choose_sites(count: int | None, sites_dir: Path | None) -> tuple[list[str], dict[str, Any]]:
    """The sites to simulate, and the options of the problem that follow from their data.

    Raises:
        ConfigurationError: if more sites are asked for than the partition has, or fewer than one.
    """
    require_type(count, int | None, "the number of sites")
    if sites_dir is None:
        if count is not None and count < 1:
            raise ConfigurationError(f"--sites must be at least 1, got {count}")
        return [f"site-{number}" for number in range(1, (count or 4) + 1)], {}
    sites, problem = sites_and_problem(sites_dir)
    if count is not None and not 1 <= count <= len(sites):
        raise ConfigurationError(
            f"--sites is {count}, but {sites_dir} has {len(sites)}; leave --sites out, or add --sites {len(sites)}"
        )
    return sites[:count], problem
