"""``grandrounds simulate``: a job with all its sites on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.commands.options import (
    Assignments,
    Backbone,
    ImageSize,
    JobName,
    Json,
    Preset,
    Rounds,
    Seed,
    Sites,
    SitesDir,
    assignments_of,
    configured_job,
)
from grandrounds.commands.output import INTERRUPTED, facts, notes, results, say, say_json, score_table
from grandrounds.commands.progress import Follower, progress_on

if TYPE_CHECKING:
    from grandrounds.deployment.jobs import Job


class EngineChoice(StrEnum):
    """What runs a simulation; listed here too, so that the help does not import torch."""

    IN_PROCESS = "in-process"
    FLARE = "flare"


SHARED = ("problem.", "controller.rounds=", "controller.seed=")
HELP = """Run a job with all its sites on this machine.

The same command with the same workspace goes on where an interrupted run has stopped.

[bold]Examples[/bold]

\b
  grandrounds simulate fedperl
  grandrounds simulate fedperl --engine flare --sites 4 --threads 4
  grandrounds simulate fedperl --sites-dir runs/ham/sites --rounds 30 --image-size 64 --backbone efficientnet_b0
  grandrounds simulate jobs/fedperl --set controller.peers=3 --set executor.learning_rate=0.0005
  grandrounds simulate fedperl --sites-dir runs/lesions/sites --preset paper
"""


def simulate(
    job: JobName,
    sites_dir: SitesDir = None,
    sites: Sites = None,
    rounds: Rounds = None,
    image_size: ImageSize = None,
    backbone: Backbone = None,
    seed: Seed = None,
    preset: Preset = None,
    assignments: Assignments = None,
    workspace: Annotated[
        Path | None,
        typer.Option(help="Folder for all that the run writes. [default: runs/RUN_NAME]", show_default=False),
    ] = None,
    engine: Annotated[
        EngineChoice, typer.Option(help="One process, or FLARE's simulator: slower, with real processes and messages.")
    ] = EngineChoice.IN_PROCESS,
    threads: Annotated[int | None, typer.Option(min=1, help="With flare: sites at work at once; default: all.")] = None,
    wire: Annotated[
        bool, typer.Option("--wire", help="In one process: pass messages through FLARE's serialiser.")
    ] = False,
    json: Json = False,
) -> None:
    """Run a job, show how far it is, and then its scores."""
    if threads is not None and engine is not EngineChoice.FLARE:
        raise typer.BadParameter("--threads needs --engine flare: one process works on one site at a time")
    if wire and engine is EngineChoice.FLARE:
        raise typer.BadParameter("--wire is for the engine in-process: with flare all messages are serialised")
    options = assignments_of(rounds, image_size, backbone, seed, assignments)
    configured, names = configured_job(job, sites, sites_dir, options, preset)
    place = workspace or Path("runs") / configured.run_name
    try:
        summary = _followed(configured, place, names, sites_dir, engine, threads, wire)
    except KeyboardInterrupt:
        say(notes(), f"interrupted: the same command goes on after the last complete round ({place})")
        raise typer.Exit(INTERRUPTED) from None
    if json:
        say_json(summary)
    else:
        _show(summary, configured, place, _sites_given(sites_dir, sites), options, preset)


def _followed(
    job: Job,
    workspace: Path,
    names: list[str],
    sites_dir: Path | None,
    engine: EngineChoice,
    threads: int | None,
    wire: bool,
) -> dict[str, Any]:
    from grandrounds.deployment import simulate as simulation
    from grandrounds.federation.server.record import EVENTS

    flare = engine is EngineChoice.FLARE
    events = simulation.simulation_of(job, workspace).record / EVENTS
    with progress_on(notes()) as progress, Follower(events, progress.show):
        return simulation.simulate(job, workspace, names, sites_dir, "flare" if flare else "in-process", threads, wire)


def _show(
    summary: dict[str, Any], job: Job, workspace: Path, data: str, options: Sequence[str], preset: str | None
) -> None:
    console = results()
    console.print(score_table(summary))
    for line in facts(summary):
        say(console, line)
    say(
        console,
        f"results: {workspace / 'results'} (summary, models, each site's predictions); log: {workspace}/run.log",
    )
    other = {"fedirm": "rscfed", "rscfed": "fedirm", "local": "fedperl"}.get(job.name, "local")
    data += f" --preset {preset}" if preset else ""
    more = 2 * int(job.options("controller")["rounds"])
    say(console, "\nnext:")
    say(console, f"  grandrounds simulate {other}{data}{_assigned(options, SHARED)}   # the same sites, another method")
    say(console, f"  the same command with --rounds {more}   # goes on after round {summary['rounds_done']}")
    say(
        console, f"  grandrounds build {job.name}{data}{_assigned(options)}   # the job's folder, for FLARE's own tools"
    )


def _assigned(options: Sequence[str], prefixes: tuple[str, ...] = ("",)) -> str:
    """Options as they are given again on a command line, those that start with one of the prefixes."""
    return "".join(f" --set {shlex.quote(option)}" for option in options if option.startswith(prefixes))


def _sites_given(sites_dir: Path | None, sites: int | None) -> str:
    """The choice of sites as it is given again on a command line."""
    folder = f" --sites-dir {shlex.quote(str(sites_dir))}" if sites_dir else ""
    return folder + (f" --sites {sites}" if sites is not None else "")
