"""``grandrounds poc``: a federation on one machine, with kits, certificates and processes as in a consortium."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.commands.options import comma_separated
from grandrounds.commands.output import notes, results, say
from grandrounds.errors import ConfigurationError

HELP = """Bring a federation up on this machine, with real kits and processes, and take it down again.

Everything is in one folder, FLARE's home included; submit to it with grandrounds submit and the researcher's kit in it.

[bold]Examples[/bold]

\\b
  grandrounds poc up runs/poc --sites hospital-a,hospital-b,hospital-c
  grandrounds poc submit runs/poc fedperl --set controller.rounds=3
  grandrounds poc down runs/poc
"""
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Everything that the federation writes is in it.")]


def build_group() -> typer.Typer:
    """The command with its parts."""
    group = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="rich")
    group.command(help="Make kits in FOLDER, or take those that are there, and start server and sites.")(up)
    group.command(
        help="Submit a job as the federation's researcher; options are those of grandrounds submit.",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(submit)
    group.command(help="Stop all processes of the federation in FOLDER; its files stay.")(down)
    group.command(help="Say which processes of the federation in FOLDER are running.")(status)
    return group


def up(
    folder: Folder,
    sites: Annotated[str, typer.Option(help="The hospitals' names.")] = "hospital-a,hospital-b,hospital-c",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of the server.")] = 8002,
    sites_dir: Annotated[
        Path | None, typer.Option(help="Folder of a partition: its sites' data, by name; else phantoms are drawn.")
    ] = None,
    privacy: Annotated[
        Path | None, typer.Option(help="A privacy.json for all sites, in place of this project's.")
    ] = None,
) -> None:
    """Prepare if needed, start, and say how to go on."""
    from grandrounds.deployment import local_federation as local
    from grandrounds.deployment.kit.overlay import Choices
    from grandrounds.deployment.kit.read import processes_of

    names = comma_separated(sites) or []
    if (folder / local.DESCRIPTION).is_file():
        federation = local.load(folder)
        if processes_of(federation.kits):
            raise ConfigurationError(f"the federation in {folder} is running; take it down first")
    else:
        data = {name: sites_dir / name / "grandrounds.json" if sites_dir else None for name in names}
        choices = {name: Choices(datasets=data[name], privacy=privacy) for name in names}
        federation = local.prepare(folder, names, port, choices)
    say(notes(), f"starting {federation.server} and {', '.join(federation.sites)}")
    local.start(federation)
    console = results()
    say(console, f"up: {federation.server}, {', '.join(federation.sites)}; logs: {federation.folder / 'logs'}")
    say(console, f"  grandrounds poc submit {folder} fedperl --set controller.rounds=3")
    say(console, f"  grandrounds poc down {folder}")


def submit(context: typer.Context, folder: Folder, job: Annotated[str, typer.Argument(metavar="JOB")]) -> None:
    """Hand over to ``grandrounds submit``, with the researcher's kit and a folder for results inside FOLDER."""
    from grandrounds.commands import submit as command
    from grandrounds.deployment.local_federation import load

    federation = load(folder)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command.submit)
    places = ["--kit", str(federation.kits / federation.researcher), "--out", str(federation.folder / "results")]
    given = [job, *places, *context.args]  # what is given twice counts as it was given last
    status = typer.main.get_command(app).main(given, prog_name="grandrounds poc submit", standalone_mode=False)
    if status:
        raise typer.Exit(status)


def down(folder: Folder) -> None:
    """Stop everything."""
    from grandrounds.deployment import local_federation as local

    killed = local.stop(local.load(folder))
    say(results(), f"down: {folder}" + (f"; {len(killed)} processes had to be killed" if killed else ""))


def status(folder: Folder) -> None:
    """Show the running processes."""
    from grandrounds.deployment import local_federation as local
    from grandrounds.deployment.kit.read import running_processes

    federation = local.load(folder)
    for name in (federation.server, *federation.sites):
        running = running_processes(federation.kit(name))
        say(results(), f"{name}: {'running, ' + ', '.join(map(str, running)) if running else 'not running'}")
