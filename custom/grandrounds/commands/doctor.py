"""``grandrounds doctor``: are data fit for training or for testing, is a kit for a federation, and what may leave a site?"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from grandrounds.commands.options import Json, comma_separated
from grandrounds.console.output import notes, results, say, say_json, table_of
from grandrounds.console.progress import Step, steps_on
from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object
from grandrounds.protocol.problem import Preprocessing, Problem

if TYPE_CHECKING:
    from grandrounds.data.fitness import Finding
    from grandrounds.data.leaks import Looked
    from grandrounds.data.site import DatasetLocation, SiteData
    from grandrounds.privacy.gate.policy import ReleaseRule, SitePolicy

FINDING_STYLES: Mapping[str, tuple[str, str]] = {
    "ok": ("OK", "green"),
    "warning": ("WARN", "yellow"),
    "failure": ("FAIL", "bold red"),
}


Purpose = Literal["training", "evaluation"]
MAX_ROUNDS = 100_000


def doctor(
    sites_dir: Annotated[Path | None, typer.Option(help="Folder of a partition: all its sites are checked.")] = None,
    site_config: Annotated[Path | None, typer.Option(help="A site's grandrounds.json, instead of a partition.")] = None,
    kit: Annotated[
        Path | None, typer.Option(help="A startup kit: its files, machine and connection are checked.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A privacy.json: what may leave, and for how many rounds.")
    ] = None,
    no_network: Annotated[bool, typer.Option("--no-network", help="With --kit: do not contact the server.")] = False,
    dataset: Annotated[str | None, typer.Option(help="With --site-config: the data set's name.")] = None,
    classes: Annotated[str | None, typer.Option(help="With --site-config: the vocabulary, a,b,c.")] = None,
    task: Annotated[
        str, typer.Option(help="With --site-config: problem.task of the job; multi where labels are findings, a|b.")
    ] = "single",
    image_size: Annotated[int, typer.Option(min=1, help="Side to which images are resized, in pixels.")] = 64,
    channels: Annotated[int, typer.Option(min=1, max=3, help="1 for grey images, 3 for colour.")] = 3,
    preprocessing: Annotated[Preprocessing, typer.Option(help="problem.preprocessing of the job.")] = "exact",
    page: Annotated[
        Path | None,
        typer.Option(
            help="Write an HTML page of images as a network sees them, for the site's own eyes (it shows patients' images). "
            "With --sites-dir one for each site, its name before .html."
        ),
    ] = None,
    accept_unlabelled: Annotated[
        bool, typer.Option("--accept-unlabelled", help="A site without labels is not a failure: the job accepts it.")
    ] = False,
    allow_overlap: Annotated[
        bool,
        typer.Option(
            "--allow-overlap", help="With --sites-dir: pictures and patients at two sites are only a warning."
        ),
    ] = False,
    purpose: Annotated[
        Purpose, typer.Option(help="Training, or testing a finished model (test images only).")
    ] = "training",
    json: Json = False,
) -> None:
    """Check the images and manifests of sites before they train, a startup kit, or a privacy policy.

    With --purpose evaluation the data are for testing a finished model: labelled test images are enough. The exit status
    is 1 if something must be fixed first. With --page you see the images as a network will see them, and those that look
    wrong.

    Examples:
      grandrounds doctor --sites-dir runs/ham/sites --image-size 64
      grandrounds doctor --site-config /opt/site/local/grandrounds.json --dataset skin --classes nevus,melanoma
      grandrounds doctor --sites-dir runs/ham/sites --page look.html
      grandrounds doctor --sites-dir runs/clinic --purpose evaluation
      grandrounds doctor --kit /opt/kits/hospital-a
      grandrounds doctor --policy /opt/kits/hospital-a/local/privacy.json
    """
    if policy is not None:
        if kit is not None or sites_dir is not None or site_config is not None:
            raise typer.BadParameter("--policy goes alone")
        show_policies(policy, json)
        return
    if kit is not None:
        if sites_dir is not None or site_config is not None:
            raise typer.BadParameter("--kit goes with neither --sites-dir nor --site-config")
        if page is not None:
            raise typer.BadParameter("--page shows images, which --kit does not know; give --site-config")
        _check_kit(kit, not no_network, json)
        return
    if channels == 2:
        raise typer.BadParameter("--channels must be 1 or 3")
    if page is not None and page.suffix != ".html":
        raise typer.BadParameter(f"--page must end in .html, got {page}")
    located, content = _located(sites_dir, site_config, dataset, classes, task)
    wanted = {"image_size": image_size, "channels": channels, "preprocessing": preprocessing}
    problem = Problem.from_dict({**content, **wanted})
    pages = _pages(page, list(located), sites_dir is not None)
    with steps_on(notes()) as step:
        findings, looked = _check_data(located, problem, not accept_unlabelled, purpose, step, pages)
        if sites_dir is not None:
            step("comparing the sites")
            findings |= _compared(looked, sites_dir, allow_overlap)
    failures, warnings = _count(findings, "failure"), _count(findings, "warning")
    end = f"fix the failures before {purpose}" if failures else f"these sites are ready for {purpose}"
    _report(findings, f"{len(located)} sites: {failures} failures, {warnings} warnings; {end}", json)


def _check_kit(folder: Path, network: bool, json: bool) -> None:
    from grandrounds.deployment.kit.doctor import examine_kit
    from grandrounds.deployment.kit.read import read_kit, running_processes

    kit = read_kit(folder)
    findings = {kit.name: examine_kit(kit, network)}
    failures, warnings = _count(findings, "failure"), _count(findings, "warning")
    state = "running" if running_processes(kit) else "not running"
    end = "fix the failures, then start again" if failures else "it can take part"
    verdict = f"{kit.name} ({kit.kind} of {kit.project}, {state}): {failures} failures, {warnings} warnings; {end}"
    _report(findings, verdict, json)


def _report(by_site: Mapping[str, Sequence[Finding]], verdict: str, json: bool) -> None:
    """Show the findings, and end with status 1 if one is a failure."""
    if json:
        say_json({name: [asdict(finding) for finding in findings] for name, findings in by_site.items()})
    else:
        console = results()
        console.print(_table(by_site))
        say(console, verdict)
    if _count(by_site, "failure"):
        raise typer.Exit(1)


def _count(by_site: Mapping[str, Sequence[Finding]], level: str) -> int:
    return sum(finding.level == level for findings in by_site.values() for finding in findings)


def _table(by_site: Mapping[str, Sequence[Finding]]) -> Table:
    table = Table("", "site", "check", "finding")
    for site, findings in by_site.items():
        for finding in findings:
            word, style = FINDING_STYLES[finding.level]
            message = finding.message.removeprefix(f"{site}: ")
            table.add_row(Text(word, style=style), Text(site), finding.check, Text(message))
        table.add_section()
    return table


def _located(
    sites_dir: Path | None, site_config: Path | None, dataset: str | None, classes: str | None, task: str
) -> tuple[dict[str, DatasetLocation], dict[str, Any]]:
    """Where each site's data set is, and its name, the vocabulary and the task, as options of a problem."""
    if sites_dir is not None and site_config is None:
        return _of_partition(sites_dir)
    if site_config is None or sites_dir is not None:
        raise typer.BadParameter("give either --sites-dir, --site-config or --kit")
    if not dataset or not classes:
        raise typer.BadParameter("--site-config needs --dataset and --classes")
    return _of_site(site_config, dataset), {"dataset": dataset, "classes": comma_separated(classes), "task": task}


def _of_partition(sites_dir: Path) -> tuple[dict[str, DatasetLocation], dict[str, Any]]:
    from grandrounds.data.partition.files import sites_and_problem
    from grandrounds.data.site import locate_dataset

    sites, problem = sites_and_problem(sites_dir)
    return {site: locate_dataset(site, problem["dataset"], [sites_dir]) for site in sites}, problem


def _of_site(path: Path, dataset: str) -> dict[str, DatasetLocation]:
    from grandrounds.data.site import read_site_config

    locations = read_site_config(path)
    if dataset not in locations:
        known = ", ".join(sorted(locations)) or "none"
        raise ConfigurationError(f"{path}: data set {dataset!r} is not defined (defined: {known})")
    return {path.absolute().parent.name: locations[dataset]}


def _check_data(
    located: Mapping[str, DatasetLocation],
    problem: Problem,
    needs_labels: bool,
    purpose: Purpose,
    step: Step,
    pages: Mapping[str, Path],
) -> tuple[dict[str, list[Finding]], dict[str, Looked]]:
    """The findings about each site, and what can be compared of those whose data can be read."""
    from grandrounds.data.doctor import examine_location
    from grandrounds.protocol.paths import CACHE_VARIABLE

    with tempfile.TemporaryDirectory(prefix="grandrounds-") as temporary:
        cache = Path(os.environ.get(CACHE_VARIABLE, temporary)) / "cache"
        findings: dict[str, list[Finding]] = {}
        looked: dict[str, Looked] = {}
        for number, (site, location) in enumerate(located.items(), start=1):
            step(f"reading {site}, {number} of {len(located)}")
            more = _page_writer(site, pages.get(site), problem.preprocessing, location.reading.preprocess)
            findings[site], own = examine_location(location, problem, cache, site, needs_labels, purpose, more)
            looked |= {site: own} if own else {}
        return findings, looked


def _pages(page: Path | None, sites: Sequence[str], several: bool) -> dict[str, Path]:
    """The page of each site, none where no page is asked for."""
    if page is None:
        return {}
    return {site: page.with_stem(f"{page.stem}-{site}") if several else page for site in sites}


def _page_writer(site: str, page: Path | None, sizing: str, preprocess: str) -> Callable[[SiteData], list[Finding]]:
    if page is None:
        return lambda _: []
    from grandrounds.reporting.local import write_local_page

    return lambda data: [write_local_page(data, site, page, sizing, preprocess)]


def _compared(looked: Mapping[str, Looked], sites_dir: Path, overlap_allowed: bool) -> dict[str, list[Finding]]:
    """The findings about all sites together, none where there is only one."""
    from grandrounds.data.doctor import ALL_SITES, compare_sites
    from grandrounds.data.partition.files import read_partition, sharing_of

    compared = compare_sites(looked, sharing_of(read_partition(sites_dir)), overlap_allowed)
    return {ALL_SITES: compared} if compared else {}


def show_policies(file: Path, json: bool) -> None:
    """Check a ``privacy.json`` and show what may leave the site, and for how many rounds."""
    from grandrounds.privacy.gate.policy import read_policies

    content = read_json_object(file)
    policies = read_policies(content, str(file))
    if json:
        say_json({name: summary(policy) for name, policy in policies.items()})
        return
    for name, policy in policies.items():
        _show_policy(name, policy, default=name == content["default_scope"])


def summary(policy: SitePolicy) -> dict[str, Any]:
    """A policy as plain values; without a target nothing is protected, because nothing limits epsilon."""
    return {
        "protects": policy.unit.described() if policy.target_epsilon else None,
        "delta": policy.delta,
        "target_epsilon": dict(policy.target_epsilon),
        "tasks": list(policy.tasks),
        "releases": [_release(rule, policy) for rule in policy.releases],
        "scalars": [
            {"name": rule.name, "part": rule.part, "minimum_support": rule.minimum_support} for rule in policy.scalars
        ],
        "demands": policy.demands.to_json(),
        "limits": {
            "scored_answers": policy.scored_answers,
            "image_size": policy.image_size,
            "answer_interval": policy.answer_interval,
        },
    }


def rounds_within(rule: ReleaseRule, policy: SitePolicy) -> int | None:
    """How many releases of a rule stay within the lowest target; None without a target or without an epsilon."""
    from grandrounds.privacy.accounting import exceeds, gaussian_epsilon
    from grandrounds.privacy.gate.treatments import ClipAndNoise, ClipAndNoiseSamples

    target = min(policy.target_epsilon.values(), default=math.inf)
    if not isinstance(rule.treatment, ClipAndNoise | ClipAndNoiseSamples) or target == math.inf:
        return None
    step = rule.treatment.spending(None).towards(policy.unit)
    if step is None or rule.outside_budget:
        return None
    low, high = 0, MAX_ROUNDS
    while low < high:
        middle = (low + high + 1) // 2
        too_many = exceeds(gaussian_epsilon(step.noise_multiplier, policy.delta, middle), target)
        low, high = (low, middle - 1) if too_many else (middle, high)
    return low


def _release(rule: ReleaseRule, policy: SitePolicy) -> dict[str, Any]:
    return {
        "kind": rule.kind.value,
        "name": rule.name,
        "treatment": rule.treatment.name,
        "outside_budget": rule.outside_budget,
        "rounds": rounds_within(rule, policy),
    }


def _show_policy(name: str, policy: SitePolicy, default: bool) -> None:
    console = results()
    unit = policy.unit.described()
    targets = ", ".join(f"{dataset}: {value:g}" for dataset, value in policy.target_epsilon.items())
    protects = f"protects {unit}" if targets else "no limit of epsilon, so none is promised"
    say(console, f"scope {name}{' (default)' if default else ''}: {protects}")
    limit = f"at delta {policy.delta:g}: {targets}" if targets else f"not set; with it {unit}, would be protected"
    say(console, f"target epsilon (target_epsilon) {limit}")
    rows = []
    for rule in policy.releases:
        entry = _release(rule, policy)
        rounds = "" if entry["rounds"] is None else str(entry["rounds"])
        rows.append([entry["kind"], rule.name, entry["treatment"], "no" if rule.outside_budget else "yes", rounds])
    for scalar in policy.scalars:
        rows.append(["scalar", scalar.name, f"{scalar.minimum_support} patients in {scalar.part}", "no", ""])
    console.print(table_of(("release", "name", "treatment", "counted", "rounds"), rows, title="may leave"))
    say(console, "everything else is denied")
    demands = ", ".join(f"{name} {value}" for name, value in policy.demands.to_json().items())
    say(console, f"a task must have: {demands or 'nothing (demands)'}")
    leaves = "at once" if policy.answer_interval is None else f"at multiples of {policy.answer_interval:g} s"
    limits = (
        f"at most {policy.scored_answers} answers of a job with scores; images of at most {policy.image_size} pixels"
    )
    say(console, f"{limits} a side; answers leave {leaves}")
