"""What the package that is imported offers: different options of its jobs, commands, and rows of options of commands.

A program of its own, because the package may be that of another checkout: ``PYTHONPATH=TREE/custom python surface.py TREE``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from grandrounds.cli import build_app
from grandrounds.options import groups_of
from grandrounds.protocol.problem import Problem

GENERAL = frozenset({"help", "version", "install_completion", "show_completion"})


def component_paths(jobs: Path) -> Iterator[tuple[str, str]]:
    """The classes of all jobs: part, and full name."""
    for folder in sorted(jobs.glob("*/app/config")):
        server, client = (json.loads((folder / f"config_fed_{side}.json").read_text()) for side in ("server", "client"))
        yield "controller", server["workflows"][0]["path"]
        yield "executor", client["executors"][0]["executor"]["path"]


def options_of(jobs: Path) -> set[tuple[str, str]]:
    """All options of all jobs, by part and name."""
    found = {("problem", field.name) for field in fields(Problem)}
    for part, path in component_paths(jobs):
        module, _, name = path.rpartition(".")
        for group in groups_of(getattr(import_module(module), name)).values():
            found |= {(part, field.name) for field in fields(group)}
    return found - {("controller", "problem")}


def commands_of(command: Any) -> Iterator[list[Any]]:
    """The options of each command."""
    if hasattr(command, "commands"):
        for part in command.commands.values():
            yield from commands_of(part)
    else:
        yield [each for each in command.params if each.param_type_name == "option" and each.name not in GENERAL]


if __name__ == "__main__":
    commands = list(commands_of(typer.main.get_command(build_app())))
    print(json.dumps({
        "options": len(options_of(Path(sys.argv[1]) / "jobs")),
        "commands": len(commands),
        "option_rows": sum(map(len, commands)),
    }))  # fmt: skip
