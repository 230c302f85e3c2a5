"""The reference row of a simulation: the ridge head of all sites' training labels, on the same test images.

A method is worth its rounds if it beats a head in closed form on a frozen network. The row is a run of the job ``ridge``
in a folder of its own after the method's, so that the method's models are the same with and without it. It has the network
of the run where that can have a head of several depths, and else EfficientNet-Lite0. Its records are in ``summary.json``,
from where everything that shows a score reads them. A run that starts from this head (``controller.start_from=ridge``) has
it computed before its first round.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grandrounds.data.leaks import PICTURES, changed_pictures
from grandrounds.data.partition.files import DESCRIPTION_FILE
from grandrounds.deployment.jobs import CheckedJob, Job, Values, load_job
from grandrounds.deployment.kit.read import Kit
from grandrounds.deployment.presets import FIRST_JOB, RECOMMENDED, presets_of, values_in, weighing_alike
from grandrounds.deployment.processes import variables_set
from grandrounds.deployment.simulate import Execution, look_at_sites, simulate
from grandrounds.deployment.submission import Outcome, Report, submit_and_watch, with_roster
from grandrounds.deployment.workspace import Simulation, image_cache
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.checkpoints import CHECKPOINT_FORMAT
from grandrounds.federation.server.options import Start
from grandrounds.federation.server.record import REFERENCES, SUMMARY, SUMMED_RECORDS, versions
from grandrounds.federation.server.start import RIDGE, START_VARIABLE
from grandrounds.federation.site.features import VARIABLE as FEATURES
from grandrounds.files import copy_file, read_json_object, write_json
from grandrounds.folders import put_in_place, temporary_sibling
from grandrounds.models.registry import BACKBONES, minimum_image_size
from grandrounds.protocol.messages import COMMON
from grandrounds.protocol.names import ELSEWHERE, OTHER_SOURCES
from grandrounds.protocol.paths import CACHE_VARIABLE
from grandrounds.protocol.problem import DEPTHS, SITE_NORM, TRAIN_HEAD

POLICY = "not computed: policy"
"""Why there is no row where sums of features may not leave a site."""
RESULT, RIDGE_MODEL = "reference.json", "reference.pt"
REMARKS = "remarks"
"""In a summary."""
COMPUTE = ("device", "cpu_threads", "inference")
"""Options of the executor that the row has from the run."""
_SHARED = ("dataset", "classes", "image_size", "channels", "task", "preprocessing")


@dataclass(frozen=True)
class RidgeRow:
    """Which ridge head a run is compared with.

    Attributes:
        job: with all options.
        network: what the head's features are of, in words.
    """

    job: CheckedJob
    network: str

    @property
    def description(self) -> str:
        """In words, beside its scores."""
        return f"head in closed form from the sites' training labels, on {self.network}"


def ridge_row(job: Job, sites: int, noisy: bool = False) -> RidgeRow | None:
    """The row of a job; None for ridge itself and for the job that counts and trains nothing.

    Args:
        job: with its final options.
        sites: their number.
        noisy: whether wrong labels were drawn for the sites.

    Raises:
        ConfigurationError: if no network fits the images.
    """
    ridge = load_job(FIRST_JOB)
    if job.component("controller") in [one.component("controller") for one in (ridge, load_job("statistics"))]:
        return None
    options, problem = job.options("controller"), job.options("problem")
    executor = job.options("executor")
    common: Values = {
        **{("problem", name): problem[name] for name in _SHARED},
        **{("executor", name): executor[name] for name in COMPUTE if name in executor},
        ("controller", "seed"): options["seed"],
        ("controller", "resume"): "never" if options["resume"] == "never" else "auto",
        ("controller", "min_sites"): min(2, sites),
    }
    recommended = values_in(presets_of(ridge)[RECOMMENDED])
    labels = " (labels with the noise that was drawn)" if noisy else ""
    if executor.get("backbones"):
        why = "the sites have networks of their own"
    elif problem["weights"] is None and problem["backbone"] not in BACKBONES:
        why = f"the run names no weights of {problem['backbone']}"
    else:
        try:
            own = weighing_alike(ridge.with_values({**common, **_own_network(problem, recommended)})).checked()
            weights = f"from {problem['weights']} weights" if problem["weights"] else "from random weights, untrained"
            return RidgeRow(own, f"the run's network, {problem['backbone']} {weights}{labels}")
        except ConfigurationError:
            why = f"{problem['backbone']} cannot have such a head here"
    lite = {key: value for key, value in recommended.items() if key[1] != "image_size"}
    backbone, weights = (lite["problem", name] for name in ("backbone", "weights"))
    side = max(problem["image_size"], minimum_image_size(backbone))
    words = f"{backbone} from {weights} weights at {side} pixels, as {why}{labels}"
    return RidgeRow(
        weighing_alike(ridge.with_values({**common, **lite, ("problem", "image_size"): side})).checked(), words
    )


def _own_network(problem: Mapping[str, Any], recommended: Values) -> Values:
    """The run's untrained network with a head of several depths."""
    norm = "frozen" if problem["norm"] == SITE_NORM else problem["norm"]
    chosen = {"head": DEPTHS, "trainable": TRAIN_HEAD, "norm": norm, "test_view": recommended["problem", "test_view"]}
    kept = {name: problem[name] for name in ("backbone", "weights", "intensities")}
    return {("problem", name): value for name, value in {**kept, **chosen}.items()}


@contextmanager
def shared_features(job: Job, workspace: Path, sites_dir: Path | None = None) -> Iterator[None]:
    """Let runs on the same images share what frozen layers make of them, where a run keeps the features of ridge.

    They stay beside the partition's decoded images, for its next method; those of synthetic images go after the run.
    """
    problem = job.options("problem")
    same = problem["head"] == DEPTHS and problem["trainable"] == TRAIN_HEAD
    if FEATURES in os.environ or not same or not job.options("executor").get("feature_cache"):
        yield
        return
    folder = (image_cache(workspace, sites_dir) if sites_dir else workspace.absolute()) / "features"
    with variables_set({FEATURES: str(folder)}):
        yield
    if not sites_dir:
        shutil.rmtree(folder, ignore_errors=True)  # after a failure they stay, for the same command


def starts_from_ridge(job: Job) -> bool:
    """Whether a job's first round starts from the head in closed form."""
    named = job.options("controller").get("start_from")
    return named is not None and Start.parse(named).name == RIDGE


@contextmanager
def computed_start(
    job: Job,
    row: RidgeRow | None,
    workspace: Path,
    sites: Sequence[str],
    sites_dir: Path | None,
    workers: int,
    report: Report,
) -> Iterator[None]:
    """Compute the row before a run that starts from it, and let the run find its model.

    Args:
        job: of the run; nothing is done for one that starts otherwise.
        row: which head.
        workspace: of the run, new or of this very run.
        sites: their names.
        sites_dir: a partition's folder; None for synthetic images.
        workers: as of :class:`~grandrounds.deployment.simulate.Execution`.
        report: called with each remark on the row.

    Raises:
        ConfigurationError: if the head cannot be computed.
    """
    if row is None or not starts_from_ridge(job):
        yield
        return
    workspace = workspace.absolute()
    entry = _computed(row, workspace, sites, sites_dir, workers)
    if reason := entry.get("reason"):
        raise ConfigurationError(
            f"controller.start_from=ridge, but the head is {reason}; set it to null, or take the preset scratch, to start "
            "from a new head"
        )
    for remark in entry.get(REMARKS, ()):
        report(f"{FIRST_JOB}: {remark}")
    with variables_set({START_VARIABLE: str(workspace / RIDGE_MODEL)}):
        yield


def add_reference(
    row: RidgeRow, workspace: Path, sites: Sequence[str], sites_dir: Path | None = None, workers: int = 1
) -> dict[str, Any]:
    """Compute the row of a finished run and write it into the run's ``summary.json`` and predictions.

    What an earlier call with the same job and images has computed is taken over. A row that cannot be computed leaves the
    run as it is, and the summary says why.

    Args:
        row: which head.
        workspace: of the run.
        sites: their names.
        sites_dir: a partition's folder; None for synthetic images.
        workers: as of :class:`~grandrounds.deployment.simulate.Execution`.

    Returns:
        The entry of the summary: what the row is, CPU seconds and records by site, or the reason why there are none.
    """
    results = Simulation(workspace.absolute(), "").results
    summary = read_json_object(results / SUMMARY)
    if not summary["records"] and not summary.get(SUMMED_RECORDS):
        return {}
    entry = _computed(row, workspace.absolute(), sites, sites_dir, workers)
    return _added(results, entry)


def submit_reference(job: CheckedJob, finished: Outcome, kit: Kit, out: Path, report: Report) -> dict[str, Any]:
    """Run the row in the federation in which a job has finished, and write it into the summary of the job's download.

    It is a job of its own, ``ridge`` at the same sites: each site's policy decides whether its sums leave.

    Args:
        job: which has finished.
        finished: how it ended.
        kit: of a person who may submit.
        out: gets the row's results in a folder ``reference``.
        report: called with a line whenever something has changed.

    Returns:
        The entry of the summary: what the row is, and records by site, or the reason why there are none.

    Raises:
        ConfigurationError: if the job is ridge itself, or its run has no download.
    """
    sites = sorted(finished.summary.get("contributions", ()))
    row = ridge_row(job, len(sites))
    if row is None or finished.download is None:
        raise ConfigurationError("a ridge row is for a finished run of another method than ridge")
    named = {("controller", "run_name"): f"{job.run_name}-ridge"}
    for option in ("round_timeout", "grace"):
        named["controller", option] = job.value("controller", option)
    ridge = with_roster(row.job.with_values(named), sites)
    meta = {**ridge.meta, **({"scope": job.meta["scope"]} if "scope" in job.meta else {})}
    try:
        outcome = submit_and_watch(kit, replace(ridge, meta=meta).checked(), out / "reference", report)
    except GrandRoundsError as error:
        entry: dict[str, Any] = {"reason": f"not computed: {error}"}
    else:
        entry = {"told": row.description, **_tested(outcome.summary)}
        if not outcome.finished or not (entry["records"] or SUMMED_RECORDS in entry):
            entry = {"reason": _refusal(outcome)}
    return _added(finished.download / "workspace" / "results", entry)


def _added(results: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """Write the row into the summary of the run, whose reader must know what is remarked on the row."""
    summary = read_json_object(results / SUMMARY)
    remarks = dict.fromkeys([*summary.get(REMARKS, []), *(f"{FIRST_JOB}: {text}" for text in entry.get(REMARKS, []))])
    write_json(results / SUMMARY, {**summary, REMARKS: [*remarks], REFERENCES: {FIRST_JOB: entry}})
    return entry


def _refusal(outcome: Outcome) -> str:
    """Why there is no row."""
    reason = outcome.summary.get("reason") or "; ".join(f"{site}: {why}" for site, why in outcome.refused.items())
    return f"{POLICY if outcome.refusals else 'not computed'} ({reason or outcome.status})"


def _tested(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The records of the common model, of each site or of all together, and those of heads of other sites."""
    by_model = {
        model: {site: tested[model] for site, tested in summary.get("records", {}).items() if model in tested}
        for model in (COMMON, ELSEWHERE, OTHER_SOURCES)
    }
    summed = summary.get(SUMMED_RECORDS, {}).get(COMMON)
    known = {**by_model, REMARKS: summary.get(REMARKS), SUMMED_RECORDS: summed}
    return {"records": known.pop(COMMON), **{name: value for name, value in known.items() if value}}


def _computed(
    row: RidgeRow, workspace: Path, sites: Sequence[str], sites_dir: Path | None, workers: int
) -> dict[str, Any]:
    """The row, computed or taken over from an earlier run in the workspace, or on the same partition."""
    flare, folder = Simulation(workspace, "").flare, workspace / "reference"
    if [*flare.glob("local/privacy.json"), *flare.glob("*/local/privacy.json")]:
        return {"reason": POLICY}
    digest, kept, cache = _digest(row.job, sites, sites_dir), workspace / RESULT, image_cache(workspace, sites_dir)
    predicted = {f"{site}.csv": workspace / "results" / site / f"predictions_{FIRST_JOB}.csv" for site in sites}
    files = {RESULT: kept, RIDGE_MODEL: workspace / RIDGE_MODEL, **predicted}
    if kept.is_file() and files[RIDGE_MODEL].is_file() and read_json_object(kept)["digest"] == digest:
        return dict(read_json_object(kept)["entry"])
    shared = cache / "starts" / digest
    if sites_dir and shared.is_dir():
        looked = look_at_sites(row.job, sites, sites_dir, cache)
        if not changed_pictures(shared / PICTURES, looked):
            _copy({shared / name: path for name, path in files.items()})
            return dict(read_json_object(kept)["entry"])
    before = _cpu_seconds()
    try:
        with variables_set({CACHE_VARIABLE: str(cache)}), shared_features(row.job, workspace, sites_dir):
            run = simulate(row.job, folder, list(sites), sites_dir, Execution(workers=workers), allow_overlap=True)
    except GrandRoundsError as error:
        return {"reason": f"not computed: {error}"}
    results = Simulation(folder, "").results
    _copy({results / site / "predictions_common.csv": predicted[f"{site}.csv"] for site in sites})
    _copy({results / "selected.pt": files[RIDGE_MODEL]})
    entry = {"told": row.description, "cpu_seconds": round(_cpu_seconds() - before, 1), **_tested(run)}
    write_json(kept, {"digest": digest, "entry": entry})
    if sites_dir:
        with temporary_sibling(shared) as new:
            _copy({folder / PICTURES: new / PICTURES, **{path: new / name for name, path in files.items()}})
            put_in_place(new, shared)
    shutil.rmtree(folder)
    return entry


def _copy(files: Mapping[Path, Path]) -> None:
    """Copy those files that there are."""
    for source, target in files.items():
        if source.is_file():
            copy_file(source, target)


def _digest(job: Job, sites: Sequence[str], sites_dir: Path | None) -> str:
    """Of the row's job, its images and the versions that compute it."""
    described = sites_dir / DESCRIPTION_FILE if sites_dir else None
    partition = read_json_object(described) if described and described.is_file() else {}
    images = {site: partition.get("sites", {}).get(site) for site in sites}
    content = json.dumps([job.server, job.client, images, versions(), CHECKPOINT_FORMAT], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _cpu_seconds() -> float:
    """Of this process and of the workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
