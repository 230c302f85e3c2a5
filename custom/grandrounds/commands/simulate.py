"""``grandrounds simulate``: a job with all its sites on this machine."""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.commands.jobs import BUILT
from grandrounds.commands.label import label_lists
from grandrounds.commands.options import Json, SimulatedJobArguments, takes
from grandrounds.console.output import INTERRUPTED, notes, results, say, say_json
from grandrounds.protocol.names import Engine

if TYPE_CHECKING:
    from grandrounds.deployment.jobs import Job


SHARED = ("problem.", "controller.rounds=", "controller.seed=")


@takes(SimulatedJobArguments)
def simulate(
    arguments: SimulatedJobArguments,
    workspace: Annotated[
        Path | None,
        typer.Option(help="Folder for everything that the run writes; default: runs/RUN_NAME.", show_default=False),
    ] = None,
    hold_out: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE", help="A site that trains nothing and then tests the model; repeatable."),
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="This program, or FLARE's simulator: slower, with its processes and messages.")
    ] = "in-process",
    threads: Annotated[
        int | None, typer.Option(min=1, help="With flare: sites that work at the same time; default: all.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="With in-process: forked workers that train sites at the same time; default: by cores."
        ),
    ] = None,
    wire: Annotated[
        bool, typer.Option("--wire", help="With in-process: pass messages through FLARE's serialiser.")
    ] = False,
    allow_overlap: Annotated[
        bool,
        typer.Option(
            "--allow-overlap",
            help="Go on where sites have pictures or patients in common, which makes scores too high; it is recorded.",
        ),
    ] = False,
    reference: Annotated[
        bool | None,
        typer.Option(
            "--reference/--no-reference",
            help="Compare with a ridge head of the same training labels (row ridge); the models are the same. Default: yes.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Move another run that is in the workspace aside, to WORKSPACE.1 or the next."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Run a job with all its sites on this machine.

    Run the same command with the same workspace again to resume an interrupted run.

    Examples:
      grandrounds simulate fedperl
      grandrounds simulate fedperl --engine flare --sites 4 --threads 4
      grandrounds simulate fedperl --sites-dir runs/ham/sites --rounds 30 --image-size 64 --backbone efficientnet_b0
      grandrounds simulate --images FOLDER
      grandrounds simulate fedavg --images FOLDER --rounds 20
      grandrounds simulate --images FOLDER --hold-out Leeds
      grandrounds simulate jobs/fedperl --set controller.peers=3 --set executor.learning_rate=0.0005
      grandrounds simulate fedperl --sites-dir runs/lesions/sites --preset paper
      grandrounds simulate mdhfl --preset rhfl
    """
    gc.disable()  # else Python looks through all of torch's objects again and again
    from grandrounds.api.running import run
    from grandrounds.deployment.simulate import Execution
    from grandrounds.federation.server.record import divergence

    gc.enable()
    folder = workspace or Path("runs") / arguments.configured({}).run_name
    job, sites = arguments.checked(folder)
    try:
        finished = run(
            job,
            sites.hold_out(*hold_out or ()),
            workspace=folder,
            overwrite=overwrite,
            allow_overlap=allow_overlap,
            reference=reference,
            execution=Execution(engine, threads, workers, wire, ["grandrounds", *sys.argv[1:]]),
        )
        finished.score_held_out(allow_overlap=allow_overlap)
    except KeyboardInterrupt:
        say(notes(), f"interrupted: run the same command to resume after the last complete round ({folder})")
        raise typer.Exit(INTERRUPTED) from None
    if diverged := divergence(finished.summary.get("remarks", ())):
        say(notes(), f"error: {diverged}")
    if json:
        say_json(finished.summary)
    else:
        again = "".join(f" --hold-out {shlex.quote(name)}" for name in hold_out or ())
        again += " --allow-overlap" * allow_overlap
        _show(finished.summary, job, folder, replace(arguments, images=None, sites_dir=sites.folder), again)
    if diverged:
        raise typer.Exit(1)


def _show(summary: dict[str, Any], job: Job, folder: Path, arguments: SimulatedJobArguments, again: str) -> None:
    console = results()
    from grandrounds.commands.submit import show_statistics
    from grandrounds.console.scores import facts, score_table
    from grandrounds.reporting.runs import read_models

    if not (counted := show_statistics(summary, job)) and (runs := read_models(folder)):
        console.print(score_table(runs))
    for line in () if counted else facts(summary):
        say(console, line)
    say(console, f"results: {folder / 'results'} (summary, models, each site's predictions); log: {folder}/run.log")
    say(console, "\nnext:")
    for line in _next_commands(summary, job, folder, arguments, again):
        say(console, f"  {line}")


def _next_commands(
    summary: dict[str, Any], job: Job, folder: Path, arguments: SimulatedJobArguments, again: str
) -> Iterator[str]:
    """What can follow the run."""
    from grandrounds.deployment.presets import RECOMMENDED, assignment

    more = 2 * int(job.value("controller", "rounds"))
    other = {"fedirm": "fedavg", "local": "fedperl"}.get(arguments.method, "local")
    data, options = _sites_given(arguments), [assignment(*each) for each in arguments.values().items()]
    if arguments.preset is None and str(job.value("controller", "preset")).startswith(RECOMMENDED):
        arguments = replace(arguments, preset=RECOMMENDED)
    here = f"{shlex.quote(arguments.method)}{data}{_preset(arguments)}{_assigned(options)}"
    there = f"{other}{data}{_preset(arguments, other)}{_assigned(options, SHARED)}"
    yield f"grandrounds simulate {there}{again}   # another method, the same sites"
    if label_lists(folder):
        place = _sites_given(replace(arguments, sites=None))
        yield f"grandrounds label next {shlex.quote(str(folder))}{place}   # a page for each site"
    if _takes_rounds(job, more):
        yield f"the same command with --rounds {more}   # continues after round {summary['rounds_done']}"
    if Path(arguments.method).resolve() != (BUILT / job.run_name).resolve():  # which build would overwrite
        yield f"grandrounds build {here}   # a job folder for FLARE's tools"


def _takes_rounds(job: Job, rounds: int) -> bool:
    """Whether the job can have this number of rounds; a head in closed form has three."""
    from grandrounds.errors import ConfigurationError

    try:
        job.with_values({("controller", "rounds"): rounds}).checked()
    except ConfigurationError:
        return False
    return True


def _preset(arguments: SimulatedJobArguments, other: str | None = None) -> str:
    """The presets as they are given again on a command line; of another job only those that it has."""
    from grandrounds.deployment.jobs import read_job
    from grandrounds.deployment.presets import presets_of

    names = arguments.preset.split(",") if arguments.preset else []
    kept = [name for name in names if other is None or name.strip() in presets_of(read_job(other))]
    return f" --preset {','.join(kept)}" if kept else ""


def _assigned(options: Sequence[str], prefixes: tuple[str, ...] = ("",)) -> str:
    """Options as they are given again on a command line, those that start with one of the prefixes."""
    return "".join(f" --set {shlex.quote(option)}" for option in options if option.startswith(prefixes))


def _sites_given(arguments: SimulatedJobArguments) -> str:
    """The choice of sites as it is given again on a command line."""
    folder = f" --sites-dir {shlex.quote(str(arguments.sites_dir))}" if arguments.sites_dir else ""
    return folder + (f" --sites {arguments.sites}" if arguments.sites is not None else "")
