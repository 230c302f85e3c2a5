"""What a job will run at each site and what will leave the site, to be read before the job is submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grandrounds.data.doctor import SHIPPED_MINIMUM, score_remedy
from grandrounds.data.partition.files import DESCRIPTION_FILE
from grandrounds.deployment.jobs import Job, named_classes
from grandrounds.deployment.kit.shipped import POLICIES, shipped_policy, way_of
from grandrounds.deployment.presets import FIRST_JOB
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.hooks import RoundHooks
from grandrounds.federation.server.record import SUMMARY
from grandrounds.files import read_json_object
from grandrounds.methods.statistics.controller import StatisticsController
from grandrounds.privacy.gate.treatments import Masked
from grandrounds.protocol.messages import ReleaseKind

DOWNLOADED = f"workspace/results/{SUMMARY}"
"""Below the folder of a job that was downloaded."""
NO_RULE = "the site's privacy policy has "
FEW = 3
"""Numbers that are shown by name."""
OWN_MODEL = "  leaves each site at the end, where its privacy.json has a rule for it: the site's own model (site_model)"


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
        f"  preset: {job.value('controller', 'preset') or 'none (the options of the job)'}",
        *_network(job),
        f"  executor: {executor['path']}",
        f"  options: {_listed(executor['args'])}",
        *(f"  reserves at {site}: {_listed(gpus)}" for site, gpus in job.meta.get("resource_spec", {}).items()),
        *([f"  further classes: {others}"] if others else []),
        *([f"  {start}"] if (start := needed_start(job)) else []),
        f"  leaves each site, in every round: {released}; and scalar metrics",
        "  leaves each site where a model is scored or tested: correct, missed and false predictions by class (counts)",
        "  leaves each site at the end: counts for curves (curves), size, colour and detail of all training images together "
        "(image_moments), and scalar metrics",
        *([OWN_MODEL] if job.value("executor", "release_model") else []),
        *(f"  under policy {name}: {under_policy(job, name)}" for name in POLICIES),
        "  stays: all counts of a model if one of them is too small, and balanced accuracy and F1 with them",
        f"  privacy: {scope}, as the site's own privacy.json defines it",
    ]


def needed_start(job: Job) -> str:
    """The trained model that the server must have before the first round; empty where the job starts from none."""
    name = job.options("controller").get("start_from")
    if name is None:
        return ""
    named, _, digest = name.partition("@")
    head = f", the head of job {FIRST_JOB} on the same data, network and classes" if named == FIRST_JOB else ""
    pinned = f", SHA-256 {digest}" if digest else ""
    return (
        f"starts from: run {named!r} of yours that the server has finished, or its weights of this name{pinned}{head}"
    )


def under_policy(job: Job, name: str) -> str:
    """What a hospital with a shipped policy makes of a job: how its releases leave, or why it refuses it."""
    policy, releases = shipped_policy(name), releases_of(job)
    rules = {release: rule for release, kind in releases.items() if (rule := policy.rule_for(kind, release))}
    if refusal := policy.refusal_of(releases):
        return f"refused: {refusal.cause.removeprefix(NO_RULE)}"
    needed = job.component("executor").needed
    if missing := [name for name in needed if not (policy.scalar_rule_for(name) or policy.allows_fact(name))]:
        return f"refused: no rule that lets {', '.join(missing)} out"
    masked = any(isinstance(rule.treatment, Masked) for rule in rules.values())
    if masked and (single := _needs_single_answers(job.component("controller"))):
        return f"refused: {single}"
    numbers = [rule.name for rule in policy.scalars]
    shown = "numbers and scores" if len(numbers) > FEW else ", ".join(numbers) or "no number of one hospital"
    return "; ".join([*(f"{release}: {way_of(rule, policy)}" for release, rule in rules.items()), shown])


def _needs_single_answers(controller: type) -> str:
    """Why a method cannot do with the sum of the sites' answers; empty if it can."""
    if getattr(controller, "is_secure", RoundHooks.is_secure) is RoundHooks.is_secure:
        return "the server reads each site's answer"
    return getattr(controller, "needs_single_updates", "")


def _network(job: Job) -> list[str]:
    """The network of a job that has one."""
    if issubclass(job.component("controller"), StatisticsController):
        return []
    own = job.value("executor", "backbones")
    return [f"  network: {job.network}{f'; at {_listed(own)}' if own else ''}"]


def releases_of(job: Job) -> dict[str, ReleaseKind]:
    """What leaves a site in a round, by name, apart from scalar metrics."""
    return job.component("executor").releases_with({**job.options("controller"), **job.options("executor")})


def announced_scores(job: Job, out: Path) -> list[str]:
    """Which scores of a training sites will withhold, by the statistics that they have released before; none for other jobs.

    Args:
        job: to be submitted.
        out: its folder for results; those of the job ``statistics`` are looked for in it and in the folders beside it.
    """
    if issubclass(job.component("controller"), StatisticsController):
        return []
    dataset, classes = job.value("problem", "dataset"), list(job.value("problem", "classes"))
    last = _last_statistics(out, dataset, classes)
    if last is None:
        return [
            f"  withheld: not known, because no statistics of data set {dataset!r} with these classes are in {out.parent}; "
            "grandrounds submit statistics, with the same --dataset and --classes, says before a run which scores will be "
            "withheld, and grandrounds doctor --site-config says it at a site"
        ]
    path, statistics = last
    sites = {name: numbers for name, numbers in statistics.items() if not job.sites or name in job.sites}
    lines = withheld_scores(sites, classes, SHIPPED_MINIMUM)
    if not lines:
        every = f"every class has no test patient or at least {SHIPPED_MINIMUM}, at every site"
        return [f"  withheld: no score, where policies ask for no more than that; {every} ({path})"]
    return [f"  warning: scores will be withheld, by the statistics in {path}:", *(f"    {line}" for line in lines)]


def withheld_scores(sites: Mapping[str, Mapping[str, float]], classes: Sequence[str], minimum: int) -> list[str]:
    """The scores that a later run will not have, by site, by the counts that the job ``statistics`` was given.

    Args:
        sites: released numbers by site; none of a part of the images in which a class has too few patients.
        classes: the vocabulary.
        minimum: patients behind a count that was released.

    Example:
        >>> withheld_scores({"a": {"images.test.mel": 31.0, "images.test.nv": 40.0}, "b": {}}, ["nv", "mel"], 10)[0]
        'b: a class has 1 to 9 test patients'
        >>> withheld_scores({"a": {"images.test.mel": 31.0, "images.test.nv": 0.0}}, ["nv", "mel"], 10)
        []
    """
    lines = [
        f"{site}: a class has 1 to {minimum - 1} test patients"
        for site, numbers in sites.items()
        if any(numbers.get(f"images.test.{name}", 1) in range(1, minimum) for name in classes)
    ]
    if not lines:
        return []
    effect = "counts, balanced accuracy and F1 of these sites are withheld where a policy has this minimum"
    return [*lines, f"{effect} ({SHIPPED_MINIMUM} in that of startup kits); {score_remedy('test')}"]


def statistics_of(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The sites' numbers in the summary of a run of the job ``statistics``; none in that of another job."""
    statistics = (entry["statistics"]["sites"] for entry in summary.get("rounds", ()) if "statistics" in entry)
    return next(statistics, {})


def _last_statistics(
    out: Path, dataset: str, classes: Sequence[str]
) -> tuple[Path, dict[str, dict[str, float]]] | None:
    """The newest statistics of a data set with these classes, and their folder; None if there are none."""
    paths = {*out.glob(f"*/{DOWNLOADED}"), *out.parent.glob(f"*/*/{DOWNLOADED}")}
    for path in sorted(paths, key=lambda path: -path.stat().st_mtime):
        try:
            summary = read_json_object(path)
            problem, sites = summary["configuration"]["problem"], statistics_of(summary)
        except (GrandRoundsError, KeyError, TypeError):  # of a run that has not begun, or another version's
            continue
        if sites and problem["dataset"] == dataset and sorted(problem["classes"]) == sorted(classes):
            return path.parent, sites
    return None


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
