"""Many runs: of jobs over seeds and values of options, resumable and in several processes, with one comparison."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product, starmap
from pathlib import Path
from typing import Any

import pandas as pd

from grandrounds.api.methods import ConfiguredMethod, unfolded
from grandrounds.api.reports import report
from grandrounds.api.running import Run, run, sites_from
from grandrounds.api.sites import Sites
from grandrounds.checks import as_path, require_mapping
from grandrounds.console.output import notes, say
from grandrounds.data.population import PROVENANCE
from grandrounds.deployment.jobs import CheckedJob, Values, load_job
from grandrounds.deployment.presets import assignment, configured_job
from grandrounds.deployment.simulate import Execution
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.machine import usable_cores
from grandrounds.files import read_json_object
from grandrounds.option_keys import by_key
from grandrounds.options import require_type
from grandrounds.plugins import environment
from grandrounds.reporting.run import FINISHED, HELD_OUT


@dataclass(frozen=True)
class Sweep:
    """The finished runs of a sweep.

    Attributes:
        runs: by name: the job, where there are several or no options vary, the varied options and the seed.
        settings: of each run: ``job``, ``seed`` and the varied options.
        sites: where they trained.
    """

    runs: Mapping[str, Run]
    settings: Mapping[str, Mapping[str, Any]]
    sites: Sites

    def scores(self, model: str | None = None) -> pd.DataFrame:
        """Scores of all test images together, a row for each run, beside its job, seed and varied options.

        Args:
            model: ``selected`` or ``own``, see :meth:`grandrounds.Run.scores`.
        """
        rows = {
            name: {
                **self.settings[name],
                **run.scores(model).loc["pooled"].drop("majority_accuracy", errors="ignore").to_dict(),
            }
            for name, run in self.runs.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("run")

    def over_seeds(self, model: str | None = None) -> pd.DataFrame:
        """Mean and standard deviation (of a sample) of :meth:`scores` over the seeds, two rows for each setting.

        Settings of one seed have none. ``seeds`` is their number; a score that a run lacks is not there.
        """
        scores = self.scores(model)
        rows = {}
        for setting, members in scores.groupby(scores.index.str.replace(r" ?seed \S+$", "", regex=True), sort=False):
            options = {name: value for name, value in self.settings[members.index[0]].items() if name != "seed"}
            numbers = members.drop(columns=[*options, "seed"]).select_dtypes("number")
            for statistic in ("mean", "std") if len(members) > 1 else ():
                values = numbers.agg(statistic, skipna=False)
                rows[f"{setting or options['job']} {statistic}"] = {**options, "seeds": len(members), **values}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("setting")

    def report(self, out: Path | str, **options: Any) -> Path:
        """Write one report that compares the settings; runs that differ in their seed alone are one method.

        Args:
            out: folder of the report.
            options: those of :func:`grandrounds.report`, for example ``reference``, the name of a setting.

        Returns:
            The path of ``report.html``.
        """
        return report(self.runs, out, sites=self.sites if self.sites.folder else None, **options)


def sweep(
    job: str | Path | ConfiguredMethod | Sequence[str | Path | ConfiguredMethod],
    sites: Sites | Path | str | int | None = None,
    *,
    workspace: Path | str,
    seeds: Sequence[int] = (1, 2, 3),
    vary: Mapping[str, Sequence[Any]] | None = None,
    options: Mapping[str, Any] | None = None,
    preset: str | None = None,
    processes: int = 1,
    progress: bool = True,
) -> Sweep:
    """Run jobs for every seed and every combination of values; what has finished before is not run again.

    Args:
        job: a name of ``grandrounds jobs``, the folder of a job, or ``gr.FedPerl(peers=2)``; or a list of these, which are
            compared.
        sites: see :func:`grandrounds.run`; they are the same for all runs.
        workspace: gets a workspace for each run, and is resumed by the same call.
        seeds: of all random choices; the division of the images stays the same.
        vary: values by option, ``{"controller.peers": [0, 2]}``; all combinations are run. Every job must have the option.
        options: further options of all runs, ``{"controller.rounds": 30}``. Every job must have them.
        preset: named options, which every job must have.
        processes: number of runs at the same time, each in a process of its own.
        progress: show the progress on the standard error.

    Returns:
        The finished runs.

    Raises:
        ConfigurationError: if an option does not fit; nothing is run then.
        GrandRoundsError: if a run failed; the others have been run, and the same call goes on with what is missing.
    """
    _require_arguments(seeds, processes, options)
    folder = as_path(workspace, "workspace")
    jobs = list(job) if isinstance(job, Sequence) and not isinstance(job, str) else [job]
    for entry in jobs:
        as_path(unfolded(entry, None, {})[0], "a method", "name it, such as fedavg")
    chosen = sites_from(sites)
    if (
        processes > 1
        and chosen.folder
        and Sites.read(chosen.folder, _count(chosen)).hold_out(*chosen.held_out) != chosen
    ):
        raise ConfigurationError("processes: each takes the first sites of the partition, not others; leave it out")
    plans = _plans(jobs, chosen, folder, seeds, {} if vary is None else vary, options or {}, preset)
    missing = [plan for plan in plans if not plan.is_finished(chosen)]
    if progress and len(missing) < len(plans):
        say(notes(), f"{len(plans) - len(missing)} of {len(plans)} runs have finished before")
    with ThreadPoolExecutor(processes) as pool:
        failures = list(filter(None, pool.map(lambda plan: _run(plan, chosen, processes, progress), missing)))
    if failures:
        raise GrandRoundsError(f"{len(failures)} of {len(plans)} runs failed: {failures[0]}")
    runs = {plan.name: Run(plan.folder, chosen if chosen.folder else None) for plan in plans}
    return Sweep(runs, {plan.name: plan.settings for plan in plans}, chosen)


def _require_arguments(seeds: Sequence[int], processes: int, options: Mapping[str, Any] | None) -> None:
    if not isinstance(seeds, Sequence) or not seeds or len(set(seeds)) != len(seeds):
        raise ConfigurationError(f"seeds must be a list of different numbers, at least one, like [1, 2]; got {seeds!r}")
    require_type(processes, int, "processes")
    if processes < 1:
        raise ConfigurationError(f"processes must be at least 1, got {processes}")
    if options is not None:
        require_mapping(options, "options", '{"executor.steps": 3}')


@dataclass(frozen=True)
class _Plan:
    """One run of a sweep; ``name`` is that of its folder, too."""

    name: str
    job: CheckedJob
    source: str | Path
    preset: str | None
    values: Values
    settings: Mapping[str, Any]
    folder: Path

    @classmethod
    def of(
        cls,
        job: str | Path | ConfiguredMethod,
        sites: Sites,
        preset: str | None,
        options: Mapping[str, Any],
        varied: Mapping[str, Any],
        workspace: Path,
        with_job: bool,
    ) -> _Plan:
        """Plan a run and check its job."""
        source, preset, values = unfolded(job, preset, by_key(options))
        configured = configured_job(source, preset, values, sites.problem, sites.own_images).checked()
        parts = [configured.name] if with_job or not varied else []
        parts += [f"{name.partition('.')[2]}={value}" for name, value in varied.items()]
        name = f"{' '.join(parts)} seed {options['controller.seed']}".replace("/", "_")
        settings = {"job": configured.name, "seed": options["controller.seed"], **varied}
        return cls(name, configured, source, preset, values, settings, workspace / name.replace(" ", "-"))

    def is_finished(self, sites: Sites) -> bool:
        """Whether this very job has finished on these images."""
        summary, provenance = (self.folder / "results" / name for name in ("summary.json", PROVENANCE))
        if not summary.is_file() or not provenance.is_file() or read_json_object(summary)["status"] != FINISHED:
            return False
        before = load_job(self.folder / "job")
        data = read_json_object(provenance)["data"] or {}
        digests = {site: sites.description["sites"][site]["sha256"] for site in sites.names if sites.folder}
        same = (before.server, before.client) == (self.job.server, self.job.client)
        tested = {*sites.held_out} <= read_json_object(summary).get(HELD_OUT, {}).keys()
        return same and tested and data.get("sha256", {}) == digests


def _plans(
    jobs: Sequence[str | Path | ConfiguredMethod],
    sites: Sites,
    workspace: Path,
    seeds: Sequence[int],
    vary: Mapping[str, Sequence[Any]],
    options: Mapping[str, Any],
    preset: str | None,
) -> list[_Plan]:
    """A plan for each job, combination of values and seed; their names must differ."""
    plans = [
        _Plan.of(job, sites, preset, {**options, **values, "controller.seed": seed}, values, workspace, len(jobs) > 1)
        for job in jobs
        for values in _combinations(vary)
        for seed in seeds
    ]
    if not plans or len({plan.name for plan in plans}) < len(plans):
        names = [job if isinstance(job, str | Path) else job.name for job in jobs]
        raise ConfigurationError(
            f"sweep needs different jobs, at least one, got {', '.join(map(str, names))}; compare values of one by vary"
        )
    return plans


def _combinations(vary: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    require_mapping(vary, "vary", '{"controller.peers": [0, 2]}')
    for name, values in vary.items():
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise ConfigurationError(f"vary: {name} must have a list of values, got {values!r}")
    return [dict(zip(vary, values, strict=True)) for values in product(*vary.values())]


def _run(plan: _Plan, sites: Sites, processes: int, progress: bool) -> str:
    """Run a plan, in this process if there is one only; the reason if it failed, else an empty text."""
    if progress:
        say(notes(), f"run {plan.name}")
    if processes > 1:
        return _run_apart(plan, sites, processes)
    try:
        finished = run(
            plan.job,
            sites,
            workspace=plan.folder,
            progress=progress,
            execution=Execution(command=["grandrounds.sweep", plan.name]),
        )
        finished.score_held_out(progress=progress)
    except GrandRoundsError as error:
        return f"{plan.name}: {error}"
    return ""


def _count(sites: Sites) -> int:
    return len(sites.names) + len(sites.held_out)


def _run_apart(plan: _Plan, sites: Sites, processes: int) -> str:
    where = ["--sites-dir", str(sites.folder)] if sites.folder else []
    preset = ["--preset", plan.preset] if plan.preset else []
    options = [part for value in starmap(assignment, plan.values.items()) for part in ("--set", value)]
    command = [sys.executable, "-m", "grandrounds.cli", "simulate", str(plan.source), *where, *preset, *options]
    command += ["--sites", str(_count(sites)), "--workspace", str(plan.folder)]
    command += [part for name in sites.held_out for part in ("--hold-out", name)]
    threads = str(max(1, usable_cores() // processes))
    command += ["--workers", threads]
    variables = {"OMP_NUM_THREADS": threads, **os.environ, **environment()}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True)
    if ended.returncode == 0:
        return ""
    last = ended.stderr.strip().splitlines()[-1:] or [f"the process ended with status {ended.returncode}"]
    return f"{plan.name}: {last[0].removeprefix('error: ')}"
