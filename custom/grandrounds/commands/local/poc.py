"""``grandrounds poc``: a federation on one machine, with kits, certificates and processes as in a consortium."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.commands.options import comma_separated
from grandrounds.console.output import notes, results, say
from grandrounds.errors import ConfigurationError

POC_HELP = """Start and stop a federation on this machine, with real kits and processes.

Everything is in one folder, FLARE's home included.

[bold]Examples[/bold]

\b
  grandrounds poc up runs/poc --sites hospital-a,hospital-b,hospital-c
  grandrounds poc submit runs/poc fedperl --set controller.rounds=3
  grandrounds poc down runs/poc
"""
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the federation and of all that it writes.")]


def build_group() -> typer.Typer:
    """The command with its parts."""
    group = typer.Typer(help=POC_HELP, no_args_is_help=True, rich_markup_mode="rich")
    group.command(help="Start the server and the sites, with the kits in FOLDER; make these first if there are none.")(
        up
    )
    group.command(
        help="Submit a job as the federation's researcher, with the options of grandrounds submit.",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(submit)
    group.command(help="Stop all processes of the federation in FOLDER; its files stay.")(down)
    return group


def up(
    folder: Folder,
    sites: Annotated[str, typer.Option(help="The hospitals' names.")] = "hospital-a,hospital-b,hospital-c",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's port.")] = 8002,
    sites_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of a partition with the sites' data; default: synthetic images."),
    ] = None,
    privacy: Annotated[Path | None, typer.Option(help="A privacy.json for all sites; default: this project's.")] = None,
) -> None:
    """Prepare if needed, start, and show the next commands."""
    from grandrounds.deployment import local_federation as local
    from grandrounds.deployment.kit.overlay import Settings
    from grandrounds.deployment.kit.read import processes_of
    from grandrounds.federation.server.sites import require_names

    names = list(require_names(comma_separated(sites) or [], "--sites"))
    if (folder / local.DESCRIPTION).is_file():
        federation = local.load(folder)
        if processes_of(federation.kits):
            raise ConfigurationError(f"the federation in {folder} is running; take it down first")
    else:
        data = {name: sites_dir / name / "grandrounds.json" if sites_dir else None for name in names}
        settings = {name: Settings(datasets=data[name], privacy=privacy) for name in names}
        federation = local.prepare(folder, names, port, settings)
    say(notes(), f"starting {federation.server} and {', '.join(federation.sites)}")
    local.start(federation)
    console = results()
    say(console, f"up: {federation.server}, {', '.join(federation.sites)}; logs: {federation.folder / 'logs'}")
    say(console, f"  grandrounds poc submit {folder} fedperl --set controller.rounds=3")
    say(console, f"  grandrounds status --kit {federation.kits / federation.researcher}")
    say(console, f"  grandrounds poc down {folder}")


def submit(context: typer.Context, folder: Folder, job: Annotated[str, typer.Argument(metavar="JOB")]) -> None:
    """Run ``grandrounds submit`` with the researcher's kit and a folder for results inside FOLDER."""
    from grandrounds.commands import submit as command
    from grandrounds.deployment.local_federation import load

    federation = load(folder)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command.submit)
    defaults = ["--kit", str(federation.kits / federation.researcher), "--out", str(federation.folder / "results")]
    given = [job, *defaults, *context.args]  # the last value of an option counts
    status = typer.main.get_command(app).main(given, prog_name="grandrounds poc submit", standalone_mode=False)
    if status:
        raise typer.Exit(status)


def down(folder: Folder) -> None:
    """Stop everything."""
    from grandrounds.deployment import local_federation as local

    killed = local.stop_federation(local.load(folder))
    say(results(), f"down: {folder}" + (f"; {len(killed)} processes had to be killed" if killed else ""))
