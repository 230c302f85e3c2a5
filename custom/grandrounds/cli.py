"""The command ``grandrounds``.

An error that the user can fix is one line on the standard error and exit status 1; wrong use is exit status 2. Commands
import torch and FLARE only when they run, so that the help appears at once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from keyword import iskeyword
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from grandrounds import __version__
from grandrounds.console.output import INTERRUPTED
from grandrounds.errors import GrandRoundsError, UsageError
from grandrounds.extras import extra_of
from grandrounds.files import printable

EXPERIMENTS, RESULTS_PANEL = "Experiments on this machine", "Results"
FEDERATIONS, SITES = "A federation", "A site and its data"
COMMANDS = {
    "jobs": (EXPERIMENTS, "jobs", "JOBS_HELP"),
    "simulate": (EXPERIMENTS, "simulate", "SIMULATE_HELP"),
    "sweep": (EXPERIMENTS, "local.sweep", "SWEEP_HELP"),
    "build": (EXPERIMENTS, "jobs", "BUILD_HELP"),
    "new": (EXPERIMENTS, "jobs", "NEW_HELP"),
    "partition": (EXPERIMENTS, "data.partition", "PARTITION_HELP"),
    "report": (RESULTS_PANEL, "report", "REPORT_HELP"),
    "paper": (RESULTS_PANEL, "report", "PAPER_HELP"),
    "figures": (RESULTS_PANEL, "report", "FIGURES_HELP"),
    "predict": (RESULTS_PANEL, "predict", "PREDICT_HELP"),
    "evaluate": (RESULTS_PANEL, "evaluate", "EVALUATE_HELP"),
    "export": (RESULTS_PANEL, "report", "EXPORT_HELP"),
    "provision": (FEDERATIONS, "kit", "PROVISION_HELP"),
    "submit": (FEDERATIONS, "submit", "SUBMIT_HELP"),
    "status": (FEDERATIONS, "status", "STATUS_HELP"),
    "monitor": (FEDERATIONS, "status", "MONITOR_HELP"),
    "import": (SITES, "data.importing", "IMPORT_HELP"),
    "advise": (SITES, "data.advising", "ADVISE_HELP"),
    "doctor": (SITES, "doctor", "DOCTOR_HELP"),
    "overlay": (SITES, "kit", "OVERLAY_HELP"),
}
"""By name, its panel in the help, the module of its function, and the name of its help there."""
GROUPS = {
    "run": (RESULTS_PANEL, "run", "build_group"),
    "weights": (EXPERIMENTS, "weights", "build_group"),
    "poc": (FEDERATIONS, "local.poc", "build_group"),
    "kit": (SITES, "kit", "build_group"),
    "privacy": (SITES, "privacy", "build_group"),
    "ledger": (SITES, "ledger", "build_group"),
}
"""By name, its panel, its module, and the function there that makes it."""
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
            typer.echo(f"error: {' '.join(printable(str(error)).split())}", err=True)
            raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None
        except ModuleNotFoundError as error:
            if not (extra := extra_of(error.name or "")):
                raise
            typer.echo(f"error: {error.name} is not installed: pip install 'grandrounds[{extra}]'", err=True)
            raise typer.Exit(1) from None
        except BrokenPipeError:  # the reader of the output has closed it; click ends quietly
            raise
        except OSError as error:
            path = f"{error.filename}: " if error.filename else ""
            typer.echo(f"error: {printable(f'{path}{error.strerror or error}')}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None


def build_app(only: str = "") -> typer.Typer:
    """The application with all its commands, or with ``only`` one, whose start does not wait for the others."""
    app = typer.Typer(
        cls=OneLineErrors, help=HELP, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False
    )
    app.callback()(_common)
    for name, (panel, module, text) in COMMANDS.items():
        if only in ("", name):
            commands = _module(module)
            function = getattr(commands, f"{name}_" if iskeyword(name) else name)
            app.command(name, help=getattr(commands, text), rich_help_panel=panel)(function)
    for name, (panel, module, make) in GROUPS.items():
        if only in ("", name):
            app.add_typer(getattr(_module(module), make)(), name=name, rich_help_panel=panel)
    _wrap_by_width(app)
    return app


def _module(name: str) -> Any:
    return import_module(f"grandrounds.commands.{name}")


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
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    build_app(first if first in COMMANDS or first in GROUPS else "")()


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
