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
    for function, text in (
        (simulate.simulate, simulate.HELP),
        (evaluate.evaluate, evaluate.HELP),
        (report.report, report.HELP),
        (report.export, report.EXPORT_HELP),
        (figures.figures, figures.HELP),
        (jobs.jobs, jobs.HELP),
        (jobs.build, jobs.BUILD_HELP),
        (kit.provision, kit.PROVISION_HELP),
        (kit.overlay, kit.OVERLAY_HELP),
        (submit.submit, submit.HELP),
        (status.status, status.HELP),
        (status.monitor, status.MONITOR_HELP),
        (doctor.doctor, doctor.HELP),
        (jobs.new, jobs.NEW_HELP),
    ):
        app.command(help=text)(function)
    app.add_typer(kit.build_group(), name="kit")
    app.add_typer(partition.build_group(), name="partition")
    app.add_typer(poc.build_group(), name="poc")
    app.add_typer(weights.build_group(), name="weights")
    app.add_typer(privacy.build_ledger_group(), name="ledger")
    app.add_typer(privacy.build_policy_group(), name="privacy")
    return app


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
