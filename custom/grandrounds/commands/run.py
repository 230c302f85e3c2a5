"""``grandrounds run``: what can be made of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.commands.options import Json
from grandrounds.console.output import results, say, say_json

LEAVE_HELP = """Let a site leave a finished run of ridge: write a new run with the head of the other sites.

No site is asked: the server has kept the sums of up to 50 sites. With controller.class_balance=0 the head is that of
training without the site. Else it is one at the old class weights, to which the site's images have counted: for training
without it, run the job again with the other sites. The temperature stays that of the run.

Anyone who has both runs sees their difference, which is the sums of the site. Delete the old one.

[bold]Example[/bold]

\b
  grandrounds run leave runs/ridge --site site-2 --out runs/ridge-without-2
"""


def build_group() -> typer.Typer:
    """The commands ``grandrounds run ...``."""
    text = "What can be made of a finished run."
    group = typer.Typer(help=text, no_args_is_help=True, rich_markup_mode="rich")
    group.command(name="leave", help=LEAVE_HELP)(leave)
    group.callback()(lambda: None)  # a group, although it has one command only
    return group


def leave(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A simulation's workspace, or the run at the server.")],
    site: Annotated[list[str], typer.Option(help="The site that leaves; repeatable.")],
    out: Annotated[Path, typer.Option(help="Folder of the new run; it must be empty or not exist.")],
    json: Json = False,
) -> None:
    """Write the run that sites have left."""
    from grandrounds.methods.ridge.leave import leave as without

    left = without(run, site, out)
    if json:
        say_json({**left.to_json(), "stayed": list(left.stayed), "out": str(out)})
        return
    say(results(), f"the head of {', '.join(left.stayed)}, without {', '.join(left.sites)}: {out}")
    if not left.exact:
        say(results(), "it is at the old class weights; for training without them run the job with the other sites")
    say(results(), "anyone who has both runs sees the sums of the sites that have left: delete the old one")
