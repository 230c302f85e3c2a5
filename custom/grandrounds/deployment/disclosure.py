"""What a job will run at each site, and what will leave it: to be read before it is submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from grandrounds.deployment.jobs import Job, named_classes
from grandrounds.protocol.messages import UPDATE, ReleaseKind


@dataclass(frozen=True)
class Disclosure:
    """A job in a hospital's words.

    Attributes:
        job: its name.
        sites: who takes part; empty for every site that is connected.
        mandatory: who must be there.
        least: fewest sites.
        runs: class that works at the sites, and its options.
        options: of that class.
        besides: other classes that the job asks the sites to build, such as filters of its own.
        resources: what the job takes of a site's GPUs, by site.
        dataset: name of the data set that is used; each site says itself what it is.
        releases: what leaves a site, by name, beside scalar metrics.
        rounds: how often.
        scope: privacy scope that the job asks for; empty for the site's own default.
    """

    job: str
    sites: tuple[str, ...]
    mandatory: tuple[str, ...]
    least: int
    runs: str
    options: Mapping[str, Any]
    dataset: str
    releases: Mapping[str, ReleaseKind]
    rounds: int
    besides: tuple[str, ...] = ()
    resources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scope: str = ""


def disclose(job: Job) -> Disclosure:
    """Read from a checked job what it will do at the sites."""
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
        least=int(controller.get("min_sites", 1)),
        runs=executor["path"],
        options=executor["args"],
        dataset=str(job.options("problem")["dataset"]),
        releases=releases,
        rounds=int(controller["rounds"]),
        resources=job.meta.get("resource_spec", {}),
        besides=tuple(path for path in named_classes(job.client) if path != executor["path"]),
        scope=str(job.meta.get("scope", "")),
    )


def lines_of(disclosure: Disclosure, connected: Sequence[str] = ()) -> list[str]:
    """The disclosure in plain lines.

    Args:
        disclosure: of a job.
        connected: the sites that the server sees.
    """
    sites = disclosure.sites or tuple(connected)
    who = ", ".join(sites) if sites else "every site that is connected"
    mandatory = f"; must be there: {', '.join(disclosure.mandatory)}" if disclosure.mandatory else ""
    released = ", ".join(f"{name} ({kind.value})" for name, kind in disclosure.releases.items()) or "nothing"
    scope = f"scope {disclosure.scope}" if disclosure.scope else "each site's default scope"
    options = _listed(disclosure.options)
    return [
        f"job {disclosure.job}: {disclosure.rounds} rounds on data set {disclosure.dataset!r}",
        f"  runs at: {who} (at least {disclosure.least}{mandatory})",
        f"  runs there: {disclosure.runs}",
        f"  with: {options}",
        *(f"  takes at {site}: {_listed(asked)}" for site, asked in disclosure.resources.items()),
        *([f"  and besides: {', '.join(disclosure.besides)}"] if disclosure.besides else []),
        f"  leaves each site, in every round: {released}; and scalar metrics",
        "  leaves each site at the end: counts of at least ten patients for curves (curves), and scalar metrics",
        f"  privacy: {scope}, and what the site's own privacy.json says",
    ]


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())
