"""``grandrounds overlay``: a startup kit, set as this project needs it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from grandrounds.commands.options import Json, comma_separated
from grandrounds.commands.output import results, say, say_json

HELP = """Set a startup kit's own files: allowed classes, rights, privacy policy, data sets, storage.

Only files in the kit's folder local are written. Applied again, it changes nothing; what the site has set itself stays.
Rights and the privacy policy are read when FLARE starts: restart a running site afterwards.

[bold]Examples[/bold]

\\b
  grandrounds overlay /opt/kits/server --storage /srv/flare --mandatory-sites hospital-a,hospital-b
  grandrounds overlay /opt/kits/hospital-a --wheel grandrounds-0.1.0-py3-none-any.whl --datasets grandrounds.json
  grandrounds overlay /opt/kits/hospital-a --gpus 1 --gpu-memory 24
"""


def overlay(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The startup kit of a server or a site.")],
    wheel: Annotated[Path | None, typer.Option(help="The reviewed wheel; it must be what is installed.")] = None,
    datasets: Annotated[Path | None, typer.Option(help="Of a site: a grandrounds.json with its data sets.")] = None,
    privacy: Annotated[
        Path | None, typer.Option(help="Of a site: its privacy.json, in place of this project's.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="Of a site: GPUs that jobs may ask for.")] = None,
    gpu_memory: Annotated[float | None, typer.Option(min=0, help="Of a site: memory of each GPU, in GiB.")] = None,
    storage: Annotated[Path | None, typer.Option(help="Of a server: folder for jobs and results.")] = None,
    mandatory_sites: Annotated[
        str | None, typer.Option(help="Of a server: sites without which no job starts, a,b; '' for none.")
    ] = None,
    json: Json = False,
) -> None:
    """Apply the overlay and say what became of each file."""
    from grandrounds.deployment.kit.overlay import Choices, apply_overlay
    from grandrounds.deployment.kit.read import read_kit, running_processes

    found = read_kit(kit)
    mandatory = None if mandatory_sites is None else comma_separated(mandatory_sites) or []
    changes = apply_overlay(found, Choices(wheel, datasets, privacy, gpus, gpu_memory, storage, mandatory))
    changed = any(change.what != "as it was" for change in changes)
    live = changed and bool(running_processes(found))
    if json:
        entries = [{**asdict(change), "path": str(change.path)} for change in changes]
        say_json({"participant": found.name, "kind": found.kind, "files": entries, "restart": live})
        return
    console = results()
    for change in changes:
        say(console, f"{change.what}: {change.path}")
    if live:
        say(console, f"{found.name} is running: restart it, because rights and privacy are read at its start")
