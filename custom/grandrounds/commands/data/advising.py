"""``grandrounds advise``: one command to start with, why, and what was measured."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from grandrounds.api import advising
from grandrounds.commands.options import Json
from grandrounds.console.output import results, say, say_json

ADVISE_HELP = """Recommend one method for the sites of a partition: the command, the reason, and the committed evidence.

[bold]Examples[/bold]

\b
  grandrounds advise --sites-dir runs/ham/sites
  grandrounds advise --sites-dir runs/ham/sites --leaves updates
  grandrounds advise --sites-dir runs/cells/sites --networks own
"""


def advise(
    sites_dir: Annotated[Path, typer.Option(help="Folder of a partition, as of grandrounds import or partition.")],
    networks: Annotated[
        advising.Networks, typer.Option(help="One network for all sites, or each site has a network of its own.")
    ] = "one",
    leaves: Annotated[
        advising.Leaves,
        typer.Option(
            help="What may leave a site: exact sums of features (they say much of a site), model updates, or only updates "
            "with noise, under an epsilon."
        ),
    ] = "sums",
    json: Json = False,
) -> None:
    """Show what was found and what to run."""
    situation = advising.situation(sites_dir, networks, leaves)
    advice = advising.advise(situation)
    command = advice.command(sites_dir)
    if json:
        say_json({"command": command, **asdict(advice)})
        return
    for line in [*situation.lines, command, f"why: {advice.reason}", f"evidence: {advice.evidence}"]:
        say(results(), line)
