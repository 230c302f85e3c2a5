"""What a job will run at each site and what will leave the site, to be read before the job is submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from grandrounds.deployment.jobs import Job, named_classes
from grandrounds.protocol.messages import UPDATE, ReleaseKind


@dataclass(frozen=True)
class Disclosure:
    """What a hospital needs to know of a job.

    Attributes:
        job: its name.
        sites: sites that take part; empty for all connected sites.
        mandatory: sites that must be connected.
        min_sites: minimum number of sites.
        runs: class that works at the sites.
        options: of that class.
        dataset: name of the data set; each site defines what it is.
        releases: what leaves a site, by name, apart from scalar metrics.
        rounds: number of rounds.
        other_classes: further classes that the sites build, such as filters of the job.
        resources: GPU resources that the job reserves, by site.
        scope: privacy scope that the job requests; empty for the site's default.
    """

    job: str
    sites: tuple[str, ...]
    mandatory: tuple[str, ...]
    min_sites: int
    runs: str
    options: Mapping[str, Any]
    dataset: str
    releases: Mapping[str, ReleaseKind]
    rounds: int
    other_classes: tuple[str, ...] = ()
    resources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scope: str = ""


def disclose(job: Job) -> Disclosure:
    """The disclosure of a checked job."""
    controller, executor = job.options("controller"), job.executor
    module, _, name = executor["path"].rpartition(".")
    component = getattr(import_module(module), name)
    shared = executor["args"].get("model", "shared") == "shared"
    releases = {**({UPDATE: ReleaseKind.MODEL_UPDATE} if shared else {}), **component.releases}
    deployed = [str(site) for sites in job.meta["deploy_map"].values() for site in sites]
    return Disclosure(
        job=job.name,
        sites=tuple(site for site in deployed if site not in ("@ALL", "server")),
        mandatory=tuple(job.meta.get("mandatory_clients", ())),
        min_sites=int(controller.get("min_sites", 1)),
        runs=executor["path"],
        options=executor["args"],
        dataset=str(job.options("problem")["dataset"]),
        releases=releases,
        rounds=int(controller["rounds"]),
        resources=job.meta.get("resource_spec", {}),
        other_classes=tuple(path for path in named_classes(job.client) if path != executor["path"]),
        scope=str(job.meta.get("scope", "")),
    )


def lines_of(disclosure: Disclosure, connected: Sequence[str] = ()) -> list[str]:
    """The disclosure as lines of text.

    Args:
        disclosure: of a job.
        connected: the sites that are connected to the server.
    """
    sites = disclosure.sites or tuple(connected)
    who = ", ".join(sites) if sites else "all connected sites"
    mandatory = f"; mandatory: {', '.join(disclosure.mandatory)}" if disclosure.mandatory else ""
    released = ", ".join(f"{name} ({kind.value})" for name, kind in disclosure.releases.items()) or "nothing"
    scope = f"scope {disclosure.scope}" if disclosure.scope else "each site's default scope"
    options = _listed(disclosure.options)
    return [
        f"job {disclosure.job}: {disclosure.rounds} rounds on data set {disclosure.dataset!r}",
        f"  runs at: {who} (minimum {disclosure.min_sites}{mandatory})",
        f"  executor: {disclosure.runs}",
        f"  options: {options}",
        *(f"  reserves at {site}: {_listed(reserved)}" for site, reserved in disclosure.resources.items()),
        *([f"  further classes: {', '.join(disclosure.other_classes)}"] if disclosure.other_classes else []),
        f"  leaves each site, in every round: {released}; and scalar metrics",
        "  leaves each site at the end: counts of at least ten patients for curves (curves), and scalar metrics",
        f"  privacy: {scope}, as the site's own privacy.json defines it",
    ]


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())
