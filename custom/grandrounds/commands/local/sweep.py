"""``grandrounds sweep``: methods, seeds and values of options on this machine, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.commands.options import Json, comma_separated
from grandrounds.console.output import notes, results, say, say_json

SWEEP_HELP = """Run methods with several seeds and values of options, and compare them.

Every job runs with every seed and every combination of values, in a folder of its own in the workspace. The same command
again goes on with what is missing. The table ends with means and standard deviations over the seeds. Every job must have
the options and the preset that are given.

[bold]Examples[/bold]

\b
  grandrounds sweep ridge fedavg fedperl --sites-dir runs/ham/sites --preset recommended --workspace runs/ham/methods
  grandrounds sweep fedperl --seeds 1,2,3 --vary controller.peers=0,2 --workspace runs/peers
  grandrounds sweep fedavg ssfl --rounds 30 --processes 2 --workspace runs/labels --report runs/labels/report
"""


def sweep(
    jobs: Annotated[
        list[str],
        typer.Argument(metavar="JOB...", help="Names of jobs, or their folders."),
    ],
    workspace: Annotated[Path, typer.Option(help="Folder for the runs; the same one resumes them.")],
    seeds: Annotated[str, typer.Option(metavar="N,...", help="Seeds of all random choices in training.")] = "1,2,3",
    vary: Annotated[
        list[str] | None, typer.Option(metavar="PART.OPTION=A,B", help="Values of an option to compare; repeatable.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Short for --set controller.rounds=N.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="PART.OPTION=VALUE", help="An option of all runs; repeatable.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Named options of all jobs.")] = None,
    sites_dir: Annotated[
        Path | None, typer.Option(help="Folder of a partition (grandrounds import); default: synthetic images.")
    ] = None,
    sites: Annotated[
        int | None, typer.Option(min=1, help="Number of sites; default: all of the partition, or 4.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Runs at the same time, each in its own process.")] = 1,
    report: Annotated[Path | None, typer.Option(help="Also write a report that compares the runs.")] = None,
    json: Json = False,
) -> None:
    """Run what is missing, and show the scores of each run, with their means over the seeds."""
    import pandas as pd

    from grandrounds.api.sites import Sites
    from grandrounds.api.sweeping import sweep as run_all
    from grandrounds.deployment.assignments import parsed
    from grandrounds.deployment.jobs import load_job
    from grandrounds.errors import UsageError

    def values(texts: list[str]) -> list[tuple[str, object]]:
        return [(".".join(key), value) for text in texts for key, value in parsed(load_job(jobs[0]), [text]).items()]

    varied = {}
    for text in vary or ():
        name, _, listed = text.partition("=")
        varied[name] = [value for _, value in values([f"{name}={entry}" for entry in listed.split(",")])]
    numbers = comma_separated(seeds) or []
    if not all(number.isdecimal() for number in numbers):
        raise UsageError(f"--seeds {seeds}: expected whole numbers with commas between them, such as 1,2,3")
    runs = run_all(
        jobs,
        Sites.read(sites_dir, sites) if sites_dir else sites,
        workspace=workspace,
        seeds=[int(number) for number in numbers],
        vary=varied,
        options={**({} if rounds is None else {"controller.rounds": rounds}), **dict(values(assignments or []))},
        preset=preset,
        processes=processes,
    )
    scores = pd.concat([runs.scores(), runs.over_seeds()])
    if report is not None:
        runs.report(report)
    if json:
        say_json({name: row.dropna().to_dict() for name, row in scores.iterrows()})
        return
    shown = scores.drop(columns=["job", "seed", "seeds", *varied], errors="ignore").select_dtypes("number")
    say(results(), shown.dropna(axis=1).to_string(float_format="{:.3f}".format))
    if report is None:
        say(notes(), "to compare them: the same command with --report DIR")
