"""``grandrounds ledger known`` and ``declare-loss``: the way back of a ledger that has lost lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.console.output import notes, results, say

KNOWN_HELP = """Write what a server's records know of a site's releases, for a site whose ledger has lost lines.

[bold]Example[/bold]

\b
  grandrounds ledger known /opt/kits/server --site hospital-a --out hospital-a-known.json
"""
DECLARE_LOSS_HELP = """Go on with a ledger that has lost lines: book the worst case of what is missing.

For each private data set that is the larger of the highest target of the policy and of all that the server's records
know. What was left of the ledger is kept. The line names the missing heads, so that the server takes the site in again, and
the site's administrator signs it. A data set with a target has spent it then; counts and curves of it stay at the site.
Restore a backup first if there is one.

[bold]Example[/bold]

\b
  grandrounds ledger declare-loss /opt/kits/hospital-a --known hospital-a-known.json --reason "disk lost on 3 May"
"""


def known(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The startup kit of the server.")],
    site: Annotated[str, typer.Option(help="The site's name.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="File for the site.")],
) -> None:
    """Write what is known of a site."""
    from grandrounds.deployment.kit.read import read_kit
    from grandrounds.deployment.recovery.known import server_knowledge

    found = server_knowledge(read_kit(kit), site)
    found.write(out)
    for name, spent in found.spent.items():
        told = f", epsilon {spent.epsilon:.4g} was reported" if spent.epsilon else ""
        say(results(), f"{name}: {spent.updates} updates{told}")
    for run in found.unread:
        say(notes(), f"WARN: the record of run {run} cannot be read; what it knows is missing")
    say(results(), f"last head of the ledger: {found.head or 'unknown'}")
    say(results(), f"written to {out}; send it to the site's administrator")


def declare_loss(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The startup kit of the site.")],
    known: Annotated[Path, typer.Option(metavar="FILE", help="What the server knows, by ledger known.")],
    reason: Annotated[str, typer.Option(help="What has happened, in a sentence.")],
    signed_by: Annotated[
        Path | None,
        typer.Option(metavar="KIT", help="A kit of the site's administrator, a person's; default: KIT itself."),
    ] = None,
    noted: Annotated[
        list[str] | None, typer.Option(metavar="HASH", help="A head that was noted elsewhere and is missing.")
    ] = None,
) -> None:
    """Book the worst case."""
    from grandrounds.deployment.kit.read import read_kit
    from grandrounds.deployment.recovery.known import read_knowledge
    from grandrounds.deployment.recovery.loss import declare_kit_loss

    site = read_kit(kit)
    loss = declare_kit_loss(
        site, read_knowledge(known), noted or [], reason, read_kit(signed_by) if signed_by else site
    )
    for booking in loss.bookings:
        say(
            results(),
            f"{booking.dataset.name}: epsilon {booking.epsilon:.4g} at delta {booking.delta:g} counts as spent for "
            f"{booking.spending.unit.described()}; counts and curves of it stay here",
        )
    say(results(), f"signed by {loss.signer}; missing were {len(loss.heads)} heads, which the server may know")
