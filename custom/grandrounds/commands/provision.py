"""``grandrounds provision``: all startup kits of a project, with our overlay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.commands.output import results, say

HELP = """Make the startup kits of a project and apply this project's overlay to those of the server and the sites.

All private keys are made here. Where a hospital's key must not leave it, use nvflare cert and nvflare package instead,
as provisioning/README.md says, and grandrounds overlay at the hospital.

[bold]Examples[/bold]

\\b
  grandrounds provision provisioning/project.yml --out kits
  grandrounds provision provisioning/project.yml --out kits --wheel dist/grandrounds-0.1.0-py3-none-any.whl
"""


def provision(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="The project's description, a YAML file.")],
    out: Annotated[Path, typer.Option(help="Folder for the kits and the authority's keys: keep it secret.")] = Path(
        "kits"
    ),
    wheel: Annotated[Path | None, typer.Option(help="The reviewed wheel; it must be what is installed.")] = None,
) -> None:
    """Provision and overlay."""
    from grandrounds.deployment.kit.overlay import Choices, apply_overlay
    from grandrounds.deployment.kit.provision import provision as make
    from grandrounds.deployment.kit.read import read_kit

    kits = make(project, out)
    console = results()
    for folder in sorted(path for path in kits.iterdir() if (path / "startup").is_dir()):
        kit = read_kit(folder)
        if kit.kind != "person":
            apply_overlay(kit, Choices(wheel=wheel))
        say(console, f"{kit.kind}: {folder}")
