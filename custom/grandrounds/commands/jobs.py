"""``grandrounds jobs``, ``build`` and ``new``: the jobs and their options, a job's folder for FLARE, and plug-ins."""

from __future__ import annotations

import json as json_text
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from grandrounds.commands.options import Json, SimulatedJobArguments, takes
from grandrounds.console.output import results, say, say_json
from grandrounds.deployment.skeletons import Kind
from grandrounds.errors import UsageError

if TYPE_CHECKING:
    from grandrounds.deployment.jobs import Job

JOBS_HELP = """List the jobs that come with the package and their presets, or the options of one job.

Without --all only those options are listed that every run decides on, or that make the method.

[bold]Examples[/bold]

\b
  grandrounds jobs
  grandrounds jobs mdhfl
  grandrounds jobs mdhfl --all
  grandrounds jobs mdhfl --preset rhfl
  grandrounds jobs --json
"""
BUILD_HELP = """Write a job's folder for FLARE's own tools.

Without --byoc the package must be installed wherever the job runs, and FLARE must allow its classes.
With --byoc ("bring your own code") the job contains the package; hospitals should refuse such jobs.

[bold]Examples[/bold]

\b
  grandrounds build fedperl --byoc
  grandrounds build mdhfl --preset rhfl
  grandrounds build fedperl --sites-dir runs/ham/sites --rounds 30 --image-size 64
"""
NEW_HELP = """Write the skeleton of a plug-in: a package with one module that works, and its test.

[bold]Examples[/bold]

\b
  grandrounds new method fedproto
  grandrounds new backbone my_net
  grandrounds new dataset clinic --out plugins/clinic
"""


def jobs(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="The job whose options are shown."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show all options of the job.")] = False,
    preset: Annotated[
        str | None,
        typer.Option(help="Show the job with named options, as simulate has it."),
    ] = None,
    json: Json = False,
) -> None:
    """List the jobs, or the options of one."""
    from grandrounds.deployment.jobs import job_names, load_job, read_job
    from grandrounds.deployment.presets import with_preset

    if name is None and (every or preset):
        raise UsageError("--all and --preset need a job")
    read = load_job if name or json else read_job  # the list of jobs needs no options, whose classes take seconds
    read_jobs = [with_preset(read(job), preset) for job in ([name] if name else job_names())]
    described = [describe(job) for job in read_jobs]
    if json:
        say_json(described)
    elif name:
        _show_options(name, read_jobs[0], every)
    else:
        _show_jobs(described)


def describe(job: Job) -> dict[str, Any]:
    """Name, classes, presets and options of a job, as plain values."""
    from grandrounds.deployment.presets import presets_of

    controller = {key: value for key, value in job.options("controller").items() if key != "problem"}
    return {
        "name": job.name,
        "summary": job.meta.get("summary", ""),
        "paper": job.meta.get("paper", ""),
        "controller": job.controller["path"].rpartition(".")[2],
        "executor": job.executor["path"].rpartition(".")[2],
        "presets": list(presets_of(job)),
        "options": {"controller": controller, "executor": job.options("executor"), "problem": job.options("problem")},
    }


def _show_jobs(described: Sequence[dict[str, Any]]) -> None:
    console = results()
    table = Table("job", "what it does", "publication", "presets")
    for job in described:
        table.add_row(job["name"], job["summary"], job["paper"], ", ".join(job["presets"]))
    console.print(table)
    say(console, "options of a job: grandrounds jobs JOB; to run it: grandrounds simulate JOB --preset PRESET")


def _show_options(name: str, job: Job, every: bool) -> None:
    from grandrounds.deployment.assignments import shown
    from grandrounds.deployment.option_reference import options_of
    from grandrounds.deployment.presets import presets_of
    from grandrounds.option_annotations import Tier

    console = results()
    about = ": ".join(filter(None, [job.name, job.meta.get("summary"), job.meta.get("paper")]))
    table = Table(
        Column("option", no_wrap=True),
        *(Column(title, overflow="fold") for title in ("value", "meaning")),
        title=about,
        title_justify="left",
    )
    left_out = 0
    presets = presets_of(job)
    for part in ("controller", "executor", "problem"):
        values = job.options(part)
        for info in options_of(job, part):
            if not every and info.tier is Tier.EXPERT:
                left_out += 1
                continue
            value = values.get(info.name, info.default)
            named = {
                preset: parts[part][info.name]
                for preset, parts in presets.items()
                if parts.get(part, {}).get(info.name, value) != value
            }
            cell = "\n".join([shown(value), *(f"{preset}: {shown(other)}" for preset, other in named.items())])
            meaning = f"{info.meaning} ({info.allowed})" if every else info.meaning
            table.add_row(f"{part}.{info.name}", Text(cell), Text(meaning))
        table.add_section()
    console.print(table)
    if left_out:
        say(console, f"{left_out} more options: grandrounds jobs {name} --all")
    say(console, f"to change an option: grandrounds simulate {name} --set PART.OPTION=VALUE")
    if presets:
        say(console, f"to use a preset: grandrounds simulate {name} --preset {next(iter(presets))}")


@takes(SimulatedJobArguments)
def build(
    arguments: SimulatedJobArguments,
    byoc: Annotated[bool, typer.Option("--byoc", help="Put the package's code into the job.")] = False,
    out: Annotated[Path, typer.Option(help="The job's folder is made in this one.")] = Path("build/jobs"),
) -> None:
    """Write a job's folder and show how to run it."""
    from grandrounds.deployment.disclosure import needed_start
    from grandrounds.deployment.jobs import write_job
    from grandrounds.deployment.simulate import simulated_classes
    from grandrounds.protocol.paths import SITES_VARIABLE

    job, sites = arguments.checked()
    folder = write_job(job, out / job.run_name, byoc)
    console = results()
    say(console, f"{folder} is written; to run it here:")
    variable = f"{SITES_VARIABLE}={sites.folder.absolute()} " if sites.folder else ""
    say(console, f"  {variable}nvflare simulator {folder} -w WORKSPACE -n {len(sites.names)} -t 2")
    if not byoc:
        say(
            console,
            "for the simulator only, first allow the classes in WORKSPACE/local/resources.json (never in a kit):",
        )
        say(console, f"  {json_text.dumps(simulated_classes())}")
    if start := needed_start(job):
        say(console, start)


def new(
    kind: Annotated[Kind, typer.Argument(help="What the plug-in adds.")],
    name: Annotated[str, typer.Argument(help="Its name: lower-case letters, digits and _.")],
    out: Annotated[Path | None, typer.Option(help="Folder to make; default: the name.")] = None,
) -> None:
    """Write a package, and show how to test and use it."""
    from grandrounds.deployment.skeletons import write_skeleton

    folder = out or Path(name)
    files = write_skeleton(kind, name, folder)
    console = results()
    say(console, f"{folder} is written: {', '.join(path.name for path in files)}; next:")
    say(console, f"  cd {folder} && pytest && pip install --editable .")
