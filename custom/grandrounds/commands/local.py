"""``grandrounds sweep`` and ``poc``: many runs, and a federation with kits and processes, on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from grandrounds.commands.kit import Policy
from grandrounds.commands.options import Json, comma_separated
from grandrounds.console.output import notes, results, say, say_json
from grandrounds.errors import ConfigurationError, UsageError


def sweep(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="Names of jobs, or their folders.")],
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
    """Run methods with several seeds and values of options, and compare them.

    Every job runs with every seed and every combination of values, in a folder of its own in the workspace. The same
    command again goes on with what is missing. The table ends with means and standard deviations over the seeds. Every
    job must have the options and the preset that are given.

    Examples:
      grandrounds sweep ridge fedavg fedperl --sites-dir runs/ham/sites --preset recommended --workspace runs/ham/methods
      grandrounds sweep fedperl --seeds 1,2,3 --vary controller.peers=0,2 --workspace runs/peers
      grandrounds sweep fedavg ssfl --rounds 30 --processes 2 --workspace runs/labels --report runs/labels/report
    """
    import pandas as pd

    from grandrounds.api.sites import Sites
    from grandrounds.api.sweeping import sweep as run_all
    from grandrounds.deployment.jobs import load_job
    from grandrounds.deployment.presets import parsed

    first = load_job(jobs[0])
    varied = {}
    for text in vary or ():
        name, _, listed = text.partition("=")
        varied[name] = [value for entry in listed.split(",") for value in parsed(first, [f"{name}={entry}"]).values()]
    options = {".".join(key): value for key, value in parsed(first, assignments or ()).items()}
    if rounds is not None:
        options = {"controller.rounds": rounds, **options}
    runs = run_all(
        jobs,
        Sites.read(sites_dir, sites) if sites_dir else sites,
        workspace=workspace,
        seeds=_numbers(seeds),
        vary=varied,
        options=options,
        preset=preset,
        processes=processes,
    )
    scores = pd.concat([runs.scores(), runs.over_seeds()])
    if report is not None:
        say(notes(), str(runs.report(report)))
    if json:
        say_json({name: row.dropna().to_dict() for name, row in scores.iterrows()})
        return
    shown = scores.drop(columns=["job", "seed", "seeds", *varied], errors="ignore").select_dtypes("number")
    say(results(), shown.dropna(axis=1).to_string(float_format="{:.3f}".format))
    if report is None:
        say(notes(), "to compare them: the same command with --report DIR")


def _numbers(seeds: str) -> list[int]:
    """The seeds of ``1,2,3``."""
    numbers = comma_separated(seeds) or []
    if not all(number.isdecimal() for number in numbers):
        raise UsageError(f"--seeds {seeds}: expected whole numbers with commas between them, such as 1,2,3")
    return [int(number) for number in numbers]


Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the federation and of all that it writes.")]


def poc() -> None:
    """Start and stop a federation on this machine, with real kits and processes.

    Everything is in one folder, FLARE's home included.

    Examples:
      grandrounds poc up runs/poc --sites hospital-a,hospital-b,hospital-c
      grandrounds poc submit runs/poc
      grandrounds poc submit runs/poc fedperl --set controller.rounds=3
      grandrounds poc down runs/poc
    """


def up(
    folder: Folder,
    sites: Annotated[str, typer.Option(help="The hospitals' names.")] = "hospital-a,hospital-b,hospital-c",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's port.")] = 8002,
    sites_dir: Annotated[
        Path | None, typer.Option(help="Folder of a partition with the sites' data; default: synthetic images.")
    ] = None,
    policy: Policy = None,
    privacy: Annotated[Path | None, typer.Option(help="A privacy.json for all sites, in place of a policy.")] = None,
) -> None:
    """Start the server and the sites, with the kits in FOLDER; make these first if there are none."""
    from grandrounds.deployment import local_federation as local
    from grandrounds.deployment.kit.overlay import Settings
    from grandrounds.deployment.kit.read import processes_of
    from grandrounds.deployment.kit.shipped import policy_lines, policy_name
    from grandrounds.federation.server.sites import require_names

    names = list(require_names(comma_separated(sites) or [], "--sites"))
    if (folder / local.DESCRIPTION).is_file():
        federation = local.load(folder)
        if processes_of(federation.kits):
            raise ConfigurationError(f"the federation in {folder} is running; take it down first")
    else:
        data = {name: sites_dir / name / "grandrounds.json" if sites_dir else None for name in names}
        settings = {name: Settings(datasets=data[name], privacy=privacy, policy=policy) for name in names}
        federation = local.prepare(folder, names, port, settings)
        for line in policy_lines(policy_name(policy, len(names))) if privacy is None else ():
            say(notes(), line)
    say(notes(), f"starting {federation.server} and {', '.join(federation.sites)}")
    local.start(federation)
    console = results()
    say(console, f"up: {federation.server}, {', '.join(federation.sites)}; logs: {federation.folder / 'logs'}")
    say(console, "  " + shlex.join(["grandrounds", "poc", "submit", str(folder), *_questions(sites_dir)]))
    say(console, f"  grandrounds status --kit {federation.kits / federation.researcher}")
    say(console, f"  grandrounds poc down {folder}")


def _questions(sites_dir: Path | None) -> list[str]:
    """The options of a job that ask about the images of a partition; none for synthetic ones."""
    if sites_dir is None:
        return []
    from grandrounds.api.sites import Sites
    from grandrounds.deployment.presets import assignment

    problem = dict(Sites.read(sites_dir).problem)
    asked = ["--dataset", problem.pop("dataset")]
    if comma_separated(listed := ",".join(problem["classes"])) == [*problem["classes"]]:  # else they are given as JSON
        asked += ["--classes", listed]
        del problem["classes"]
    return [
        *asked,
        *(part for name, value in problem.items() for part in ("--set", assignment(("problem", name), value))),
    ]


def submit(context: typer.Context, folder: Folder) -> None:
    """Submit a job as the federation's researcher, with the arguments of grandrounds submit after FOLDER."""
    from grandrounds.commands import submit as command
    from grandrounds.deployment.local_federation import load

    federation = load(folder)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command.submit)
    defaults = ["--kit", str(federation.kits / federation.researcher), "--out", str(federation.folder / "results")]
    given = [*defaults, *context.args]  # the last value of an option counts
    status = typer.main.get_command(app).main(given, prog_name="grandrounds poc submit", standalone_mode=False)
    if status:
        raise typer.Exit(status)


vars(submit)["settings"] = {"allow_extra_args": True, "ignore_unknown_options": True}


def down(folder: Folder) -> None:
    """Stop all processes of the federation in FOLDER; its files stay."""
    from grandrounds.deployment import local_federation as local

    killed = local.stop_federation(local.load(folder))
    say(results(), f"down: {folder}" + (f"; {len(killed)} processes had to be killed" if killed else ""))
