"""``grandrounds submit``: a job on a real federation, from what it will do to its result."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from grandrounds.commands.options import (
    Assignments,
    Backbone,
    ImageSize,
    JobName,
    Json,
    Preset,
    Rounds,
    Seed,
    assignments_of,
    comma_separated,
)
from grandrounds.commands.output import facts, notes, results, say, say_json, score_table
from grandrounds.errors import GrandRoundsError
from grandrounds.ordering import natural_sorted

if TYPE_CHECKING:
    from grandrounds.deployment.jobs import Job
    from grandrounds.deployment.submission import Outcome

HELP = """Submit a job to a federation, watch it, and download its result.

Shows first what will run at each site and what will leave it. A job whose run has not finished can be submitted again
by itself (--resume auto): it goes on after the last complete round, and takes in a site that has been away. What counts is
the run's own summary.

[bold]Examples[/bold]

\\b
  grandrounds submit fedperl --kit kits/researcher@consortium.example --dry-run
  grandrounds submit fedperl --kit kits/researcher@consortium.example --dataset skin --classes nevus,melanoma
  grandrounds submit fedperl --kit KIT --mandatory-sites hospital-a --min-sites 3 --resume auto --attempts 3
"""


def submit(
    job: JobName,
    kit: Annotated[Path, typer.Option(help="Your startup kit.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for results. [default: runs/RUN_NAME]", show_default=False)
    ] = None,
    sites: Annotated[str | None, typer.Option(help="Who takes part, a,b,c; default: every connected site.")] = None,
    mandatory_sites: Annotated[str | None, typer.Option(help="Who must be there for the job to start, a,b.")] = None,
    min_sites: Annotated[int | None, typer.Option(min=1, help="Fewest sites, at the start and in every round.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Short for --set problem.dataset=NAME.")] = None,
    classes: Annotated[str | None, typer.Option(help="The vocabulary, a,b,c, in the order of the outputs.")] = None,
    run_name: Annotated[str | None, typer.Option(help="Names the run: the same name goes on with it.")] = None,
    scope: Annotated[str | None, typer.Option(help="Privacy scope that the job asks the sites for.")] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(metavar="SITE=GIB,...", help="Takes so much of a GPU at a site; without it jobs share the GPU."),
    ] = None,
    resume: Annotated[
        str, typer.Option(help="auto: submit again until the run has finished, and when a site is back; never.")
    ] = "never",
    attempts: Annotated[int, typer.Option(min=1, help="With --resume auto: submissions in all.")] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and show the job, submit nothing.")] = False,
    rounds: Rounds = None,
    image_size: ImageSize = None,
    backbone: Backbone = None,
    seed: Seed = None,
    preset: Preset = None,
    assignments: Assignments = None,
    json: Json = False,
) -> None:
    """Check, show, submit, watch, download."""
    if resume not in ("auto", "never"):
        raise typer.BadParameter("--resume must be auto or never")
    options = assignments_of(rounds, image_size, backbone, seed, _own(dataset, run_name, assignments))
    roster = (comma_separated(sites) or [], comma_separated(mandatory_sites) or [], min_sites)
    prepared = _prepared(job, preset, options, comma_separated(classes), roster, scope, _by_site(gpu_memory))
    outcome = _run(prepared, kit, out or Path("runs") / prepared.run_name, attempts if resume == "auto" else 1, dry_run)
    if outcome is None:
        return
    if json:
        say_json({**asdict(outcome), "download": str(outcome.download) if outcome.download else None})
    else:
        _show(outcome)
    if not outcome.finished:
        raise typer.Exit(1)


def _own(dataset: str | None, run_name: str | None, assignments: list[str] | None) -> list[str]:
    short = {"problem.dataset": dataset, "controller.run_name": run_name}
    return [*(f"{key}={value}" for key, value in short.items() if value is not None), *(assignments or [])]


def _by_site(text: str | None) -> dict[str, float]:
    """The numbers of ``a=1,b=2``."""
    found = {}
    for part in comma_separated(text) or ():
        site, _, number = part.partition("=")
        try:
            found[site] = float(number)
        except ValueError:
            found[site] = 0.0
        if not site or not 0 < found[site] < float("inf"):
            raise typer.BadParameter(f"--gpu-memory must be SITE=GIB,... with numbers above 0, got {part!r}")
    return found


def _prepared(
    name: str,
    preset: str | None,
    options: list[str],
    classes: list[str] | None,
    roster: tuple[list[str], list[str], int | None],
    scope: str | None,
    gpu_memory: dict[str, float],
) -> Job:
    from dataclasses import replace

    from grandrounds.deployment.jobs import check_job, load_job
    from grandrounds.deployment.presets import with_preset
    from grandrounds.deployment.submission import with_gpu_memory, with_roster

    loaded = load_job(name)
    if classes:
        loaded.options("problem")["classes"] = classes
    job = with_gpu_memory(with_roster(with_preset(loaded, preset, options), *roster), gpu_memory)
    check_job(job)
    return replace(job, meta={**job.meta, "scope": scope}) if scope else job


def _run(job: Job, kit: Path, out: Path, attempts: int, dry_run: bool) -> Outcome | None:
    from grandrounds.deployment.disclosure import disclose, lines_of
    from grandrounds.deployment.job_watch import admin_session, connected_sites
    from grandrounds.deployment.kit.read import read_kit
    from grandrounds.deployment.submission import require_gpu_sites, submit_and_watch

    person, console = read_kit(kit), notes()
    connected: list[str] = []
    try:
        with admin_session(person) as session:
            connected = connected_sites(session)
    except GrandRoundsError:
        if not dry_run:
            raise
    require_gpu_sites(job, [] if dry_run else connected)
    for line in lines_of(disclose(job), connected):
        say(console, line)
    if dry_run:
        return None
    started = time.monotonic()
    return submit_and_watch(
        person, job, out, lambda line: say(console, f"[{time.monotonic() - started:6.0f} s] {line}"), attempts
    )


def _show(outcome: Outcome) -> None:
    console = results()
    summary: dict[str, Any] = outcome.summary
    if sites := _told(summary):
        console.print(_figures(sites))
        say(console, "brightness is in rounds[0].statistics of summary.json; figures of too few patients are not told")
    elif summary.get("test"):
        console.print(score_table(summary))
    for line in facts(summary) if outcome.finished and not sites else ():
        say(console, line)
    for site, reason in outcome.refused.items():
        say(console, f"{site} has not taken the job: {reason}")
    if outcome.download:
        say(console, f"results: {outcome.download / 'workspace' / 'results'}")
    if not outcome.finished:
        reason = summary.get("reason") or "it has left no summary; see the log of the job in the download"
        say(console, f"the run has not finished (FLARE says {outcome.status}): {reason}")
        say(console, "the same command goes on after its last complete round; --resume auto does it by itself")


def _told(summary: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The sites' figures, if it was a run of the job ``statistics``: it has no model."""
    found = (entry["statistics"]["sites"] for entry in summary.get("rounds", ()) if "statistics" in entry)
    return next(found, {})


def _figures(sites: dict[str, dict[str, float]]) -> Table:
    """Numbers of images by class and size, a column for each site."""
    names = {name for figures in sites.values() for name in figures if not name.startswith("intensity.")}
    table = Table("images by class and size", *sites)
    for name in natural_sorted(names):
        table.add_row(name, *(f"{figures[name]:.0f}" if name in figures else "-" for figures in sites.values()))
    return table
