"""The command ``grandrounds``.

An error that the user can fix is one line on the standard error and exit status 1; wrong use is exit status 2. Commands
import torch and FLARE only when they run, so that the help appears at once.
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from grandrounds import __version__
from grandrounds.console.output import INTERRUPTED
from grandrounds.errors import GrandRoundsError, SeveralReadings, UsageError
from grandrounds.extras import extra_of
from grandrounds.files import without_controls
from grandrounds.remedies import WORDS, add_remedy, of_file

EXPERIMENTS, RESULTS_PANEL = "Experiments on this machine", "Results"
FEDERATIONS, SITES = "A federation", "A site and its data"
COMMANDS = {
    "jobs": (EXPERIMENTS, "jobs"), "simulate": (EXPERIMENTS, "simulate"), "sweep": (EXPERIMENTS, "local"),
    "build": (EXPERIMENTS, "jobs"), "new": (EXPERIMENTS, "jobs"), "partition": (EXPERIMENTS, "data"),
    "runs": (RESULTS_PANEL, "report"), "report": (RESULTS_PANEL, "report"),
    "figures": (RESULTS_PANEL, "report"), "errors": (RESULTS_PANEL, "report"), "predict": (RESULTS_PANEL, "evaluate"),
    "evaluate": (RESULTS_PANEL, "evaluate"), "export": (RESULTS_PANEL, "report"), "provision": (FEDERATIONS, "kit"),
    "submit": (FEDERATIONS, "submit"), "status": (FEDERATIONS, "status"), "import": (SITES, "data"),
    "advise": (SITES, "data"), "doctor": (SITES, "doctor"), "overlay": (SITES, "kit"), "approve": (SITES, "kit"),
}  # fmt: skip
"""By name, its panel in the help, and the module of its function, whose docstring is the help."""
GROUPS = {
    "run": (RESULTS_PANEL, "report", "leave"),
    "label": (SITES, "label", "next"),
    "weights": (EXPERIMENTS, "jobs", "list get add"),
    "poc": (FEDERATIONS, "local", "up submit down"),
    "kit": (SITES, "kit", "start stop renew partners clean support"),
    "ledger": (SITES, "ledger", "show create amend contributors repair"),
}
"""By name, its panel, its module, which has a function for it and for each command, and the names of these."""


class OneLineErrors(TyperGroup):
    """Turns errors that a user can fix into one line, without a traceback."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word; a word that is none, and often expected, is refused with what to type."""
        for words in (args[:1], args[:2]):
            if (name := " ".join(words)) in WORDS["commands"]:
                alone, followed = WORDS["commands"][name]
                typed = followed.format(shlex.join(args[len(words) :])) if args[len(words) :] else alone
                raise UsageError(f"there is no command {name}; type: {typed}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors of the package and of files become exit status 1, wrong use 2, an interruption 130."""
        try:
            return super().invoke(ctx)
        except GrandRoundsError as error:
            said = f"{error}{of_file(error.__cause__)}"
            lines = said.splitlines() if isinstance(error, SeveralReadings) else [" ".join(said.split())]
            typer.echo("\n".join(["error: " + without_controls(lines[0]), *map(without_controls, lines[1:])]), err=True)
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
            typer.echo(f"error: {without_controls(f'{path}{error.strerror or error}{of_file(error)}')}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            add_remedy(error)
            raise


def build_app(only: str = "") -> typer.Typer:
    """The application with all its commands, or with ``only`` one, whose start does not wait for the others."""
    app = typer.Typer(
        cls=OneLineErrors,
        help=_help(_common),
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_common)
    for name, (panel, module) in COMMANDS.items():
        if only in ("", name):
            _add(app, module, name, panel)
    for name, (panel, module, parts) in GROUPS.items():
        if only in ("", name):
            whole = _function(module, name)
            group = typer.Typer(help=_help(whole), no_args_is_help=True, rich_markup_mode="rich")
            group.callback()(whole)
            for part in parts.split():
                _add(group, module, part)
            app.add_typer(group, name=name, rich_help_panel=panel)
    return app


def _add(app: typer.Typer, module: str, name: str, panel: str | None = None) -> None:
    function = _function(module, name)
    settings = getattr(function, "settings", None)
    app.command(name, help=_help(function), rich_help_panel=panel, context_settings=settings)(function)


def _function(module: str, name: str) -> Any:
    """The function of a command; one whose name Python has taken ends in ``_``."""
    commands, name = _module(module), name.replace("-", "_")
    return getattr(commands, f"{name}_", None) or getattr(commands, name)


def _module(name: str) -> Any:
    return import_module(f"grandrounds.commands.{name}")


def _help(function: Any) -> str:
    """A docstring as the help: examples keep their lines, other paragraphs are wrapped by a terminal of any width."""
    text = re.sub(
        r"^(\w[\w ]*):\n(?=  )", "[bold]\\1[/bold]\n\n\b\n", inspect.getdoc(function) or "", flags=re.MULTILINE
    )
    return "\n\n".join(part if "\b" in part else part.replace("\n", " ") for part in text.split("\n\n"))


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
        bool, typer.Option("--version", "-v", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Federated training of medical-image classifiers between hospitals, on NVIDIA FLARE.

    Examples:
      grandrounds jobs
      grandrounds simulate fedperl --sites 4
      grandrounds COMMAND --help
    """


if __name__ == "__main__":
    main()
