"""The command ``grandrounds``.

An error that the user can fix is one line on the standard error and exit status 1; wrong use is exit status 2. Commands
import torch and FLARE only when they run, so that the help appears at once.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from grandrounds import __version__
from grandrounds.commands import (
    doctor,
    evaluate,
    figures,
    jobs,
    kit,
    partition,
    poc,
    privacy,
    report,
    simulate,
    status,
    submit,
    weights,
)
from grandrounds.console.output import INTERRUPTED
from grandrounds.errors import GrandRoundsError, UsageError

EXPERIMENTS, RESULTS = "Experiments on this machine", "Results"
FEDERATIONS, SITES = "A federation", "A site and its data"
HELP = """Federated training of medical-image classifiers between hospitals, on NVIDIA FLARE.

[bold]Examples[/bold]

\b
  grandrounds jobs
  grandrounds simulate fedperl --sites 4
  grandrounds COMMAND --help
"""


class OneLineErrors(TyperGroup):
    """Turns errors that a user can fix into one line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors of the package and of files become exit status 1, wrong use 2, an interruption 130."""
        try:
            return super().invoke(ctx)
        except GrandRoundsError as error:
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None
        except BrokenPipeError:  # the reader of the output has closed it; click ends quietly
            raise
        except OSError as error:
            path = f"{error.filename}: " if error.filename else ""
            typer.echo(f"error: {path}{error.strerror or error}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None


def build_app() -> typer.Typer:
    """The application with all its commands."""
    app = typer.Typer(
        cls=OneLineErrors, help=HELP, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False
    )
    app.callback()(_common)
    for panel, function, text in (
        (EXPERIMENTS, jobs.jobs, jobs.HELP),
        (EXPERIMENTS, simulate.simulate, simulate.HELP),
        (EXPERIMENTS, jobs.build, jobs.BUILD_HELP),
        (EXPERIMENTS, jobs.new, jobs.NEW_HELP),
        (RESULTS, report.report, report.HELP),
        (RESULTS, figures.figures, figures.HELP),
        (RESULTS, evaluate.evaluate, evaluate.HELP),
        (RESULTS, report.export, report.EXPORT_HELP),
        (FEDERATIONS, kit.provision, kit.PROVISION_HELP),
        (FEDERATIONS, submit.submit, submit.HELP),
        (FEDERATIONS, status.status, status.HELP),
        (FEDERATIONS, status.monitor, status.MONITOR_HELP),
        (SITES, doctor.doctor, doctor.HELP),
        (SITES, kit.overlay, kit.OVERLAY_HELP),
    ):
        app.command(help=text, rich_help_panel=panel)(function)
    for panel, name, group in (
        (EXPERIMENTS, "partition", partition.build_group()),
        (EXPERIMENTS, "weights", weights.build_group()),
        (FEDERATIONS, "poc", poc.build_group()),
        (SITES, "kit", kit.build_group()),
        (SITES, "privacy", privacy.build_policy_group()),
        (SITES, "ledger", privacy.build_ledger_group()),
    ):
        app.add_typer(group, name=name, rich_help_panel=panel)
    _wrap_by_width(app)
    return app


def _wrap_by_width(app: typer.Typer) -> None:
    """Join the lines of the help's paragraphs, which a terminal of any width then wraps; examples keep their lines."""
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _wrap_by_width(group.typer_instance)
    described: list[Any] = [app.info, *app.registered_commands]
    for info in described:
        paragraphs = (info.help or "").split("\n\n")
        info.help = "\n\n".join(text if "\b" in text else text.replace("\n", " ") for text in paragraphs)


def main() -> None:
    """Run the command line; this is the package's entry point."""
    build_app()()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"grandrounds {__version__}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Options before the command."""


if __name__ == "__main__":
    main()
