"""What a job will run at each site and what will leave the site, to be read before the job is submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grandrounds.data.partition.files import DESCRIPTION_FILE
from grandrounds.deployment.jobs import Job, named_classes
from grandrounds.deployment.presets import FIRST_JOB
from grandrounds.federation.server.robust import ENCRYPTED
from grandrounds.json_files import read_json_object
from grandrounds.option_keys import option_defaults
from grandrounds.privacy.mechanisms.encrypted_sums import MIN_SITES
from grandrounds.protocol.messages import UPDATE, ReleaseKind

IN_A_SUM = (
    f"  leaves at the end: in an encrypted sum of at least {MIN_SITES} sites the counts of their tests, in place of "
    "each site's own where small counts must be hidden; sites release the sum without these (pooled_counts)"
)


def disclosure(job: Job, connected: Sequence[str] = ()) -> list[str]:
    """The disclosure of a checked job, as lines of text.

    Args:
        job: the job.
        connected: the sites that are connected to the server.
    """
    executor = job.executor
    sites = ", ".join(job.sites or connected) or "all connected sites"
    required = job.meta.get("mandatory_clients")
    mandatory = f"; mandatory: {', '.join(required)}" if required else ""
    released = ", ".join(f"{name} ({kind.value})" for name, kind in releases_of(job).items()) or "nothing"
    others = ", ".join(path for path in named_classes(job.client) if path != executor["path"])
    scope = f"scope {job.meta['scope']}" if job.meta.get("scope") else "each site's default scope"
    return [
        f"job {job.name}: {job.value('controller', 'rounds')} rounds on data set {job.value('problem', 'dataset')!r}",
        f"  runs at: {sites} (minimum {job.min_sites}{mandatory})",
        f"  executor: {executor['path']}",
        f"  options: {_listed(executor['args'])}",
        *(f"  reserves at {site}: {_listed(gpus)}" for site, gpus in job.meta.get("resource_spec", {}).items()),
        *([f"  further classes: {others}"] if others else []),
        *([f"  {start}"] if (start := needed_start(job)) else []),
        f"  leaves each site, in every round: {released}; and scalar metrics",
        "  leaves each site where a model is scored or tested: correct, missed and false predictions by class (counts)",
        *([IN_A_SUM] if encrypts(job) else []),
        "  leaves each site at the end: counts of at least ten patients for curves (curves), and scalar metrics",
        "  stays: balanced accuracy and F1 of a site of whose classes one has fewer patients than its policy asks for (10 "
        "in that of startup kits); the job statistics and grandrounds doctor name these classes, "
        "and what to change, before a run",
        f"  privacy: {scope}, as the site's own privacy.json defines it",
    ]


def needed_start(job: Job) -> str:
    """The trained model that the server must have before the first round; empty where the job starts from none."""
    name = job.options("controller").get("start_from")
    if name is None:
        return ""
    head = f", the selected.pt of job {FIRST_JOB} on the same data, network and classes" if name == FIRST_JOB else ""
    return f"starts from: the server's weights {name!r} (grandrounds weights add FILE --name {name}){head}"


def encrypts(job: Job) -> bool:
    """Whether sites send sums that the server cannot read, in which counts of tests travel as well."""
    averages = "aggregation" in option_defaults(job.component("controller"))
    hidden = averages and job.value("controller", "aggregation") == ENCRYPTED
    return hidden or ReleaseKind.ENCRYPTED_VALUES in releases_of(job).values()


def releases_of(job: Job) -> dict[str, ReleaseKind]:
    """What leaves a site in a round, by name, apart from scalar metrics."""
    shared = job.value("executor", "model") == "shared"
    return {**({UPDATE: ReleaseKind.MODEL_UPDATE} if shared else {}), **job.component("executor").releases}


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def nothing_to_do(job: Job, sites: Sequence[str], sites_dir: Path | None) -> str:
    """Why the job's method has nothing of its own to do with the images of a partition; empty where it has."""
    if sites_dir is None or not (sites_dir / DESCRIPTION_FILE).is_file():
        return ""
    described = read_json_object(sites_dir / DESCRIPTION_FILE)["sites"]
    labelled = {site: int(described[site]["labelled"]) for site in sites}
    unlabelled = {site: int(described[site]["images"]["train"]) - labelled[site] for site in sites}
    method = getattr(job.component("executor"), "nothing_to_do", None)
    return str(method(labelled, unlabelled)) if method else ""
