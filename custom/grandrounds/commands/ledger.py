"""``grandrounds ledger``: what a site has spent of its patients' privacy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from grandrounds.commands.options import Json
from grandrounds.commands.output import results, say, say_json
from grandrounds.errors import DataError

if TYPE_CHECKING:
    from grandrounds.privacy.ledger.entries import Booking
    from grandrounds.privacy.ledger.ledger import LedgerContent

GROUP_HELP = "Open, read, check and amend a site's privacy ledger."
HELP = """Show what a site has released, and what that amounts to.

FOLDER is where the site keeps its ledger. The chain of lines is always checked; --verify also computes every data set's
epsilon again, by two methods. The head is the last line's hash: note it elsewhere, and --noted tells later if the file is
still the same one.

[bold]Examples[/bold]

\b
  grandrounds ledger show local/privacy
  grandrounds ledger show local/privacy --verify --noted 3f0c... --last 0
  grandrounds ledger show local/privacy --json
"""
CREATE_HELP = """Open a site's ledger, once, before its first job.

It is a step of its own: a site whose ledger is missing sends nothing, and does not begin again at nothing spent. Where there
is a ledger already, nothing changes.

[bold]Example[/bold]

\b
  grandrounds ledger create local/privacy --site hospital-a
"""
VERIFY_HELP = """Check a ledger: its chain of lines, and every epsilon by two methods.

[bold]Example[/bold]

\b
  grandrounds ledger verify local/privacy --noted 3f0c...
"""
AMEND_HELP = """Record that a data set has changed, for example grown. Its name stays, and so does all that it has spent.

The new fingerprint is computed from the manifest.

[bold]Example[/bold]

\b
  grandrounds ledger amend local/privacy skin --manifest skin.csv --reason "images of May added"
"""
COLUMNS = ("time", "job", "run", "round", "release", "dataset", "mechanism", "unit", "sensitivity", "sigma", "epsilon")
NUMERIC = {"round", "sensitivity", "sigma", "epsilon"}
RELATIVE_DIFFERENCE = 1e-2


def build_group() -> typer.Typer:
    """The group of commands."""
    group = typer.Typer(help=GROUP_HELP, no_args_is_help=True, rich_markup_mode="rich")
    for name, text, function in (
        ("show", HELP, show),
        ("verify", VERIFY_HELP, verify),
        ("create", CREATE_HELP, create),
        ("amend", AMEND_HELP, amend),
    ):
        group.command(name=name, help=text)(function)
    return group


Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the site's ledger.")]
Noted = Annotated[str | None, typer.Option(metavar="HASH", help="A head that was noted earlier.")]


def create(folder: Folder, site: Annotated[str, typer.Option(help="The site's name, as in its startup kit.")]) -> None:
    """Open a ledger."""
    from grandrounds.privacy.ledger.ledger import Ledger

    content = Ledger.create(folder, site).content()
    say(results(), f"privacy ledger of {site}, opened {content.opening.time}, with {len(content.bookings)} releases")
    say(results(), f"head: {content.chain.head}")


def verify(folder: Folder, noted: Noted = None) -> None:
    """Check a ledger; what is wrong is an error."""
    from grandrounds.privacy.ledger.ledger import LEDGER_NAME, read_ledger

    content = read_ledger(folder / LEDGER_NAME)
    if noted is not None:
        content.chain.require_head(noted)
    for name in content.datasets:
        for entry in accounts(content, name, verify=True):
            spent = f"epsilon {_text(entry['epsilon'])} at delta {entry['delta']:g} for {entry['unit']}"
            say(results(), f"{name}: {entry['releases']} releases, {spent}")
    say(results(), f"verified: {len(content.chain.lines)} lines, chain unbroken, head {content.chain.head}")


def amend(
    folder: Folder,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Its name in the ledger.")],
    manifest: Annotated[Path, typer.Option(help="The data set's manifest, as it is from now on.")],
    reason: Annotated[str, typer.Option(help="Why it has changed, in a sentence.")],
) -> None:
    """Record that a data set has changed."""
    from grandrounds.data.manifest import read_manifest
    from grandrounds.privacy.ledger.entries import DatasetIdentity
    from grandrounds.privacy.ledger.ledger import LEDGER_NAME, Ledger, dataset_fingerprint, read_ledger

    records = read_manifest(manifest).records
    fingerprint = dataset_fingerprint((record.image for record in records), (record.group for record in records))
    ledger = Ledger(folder, read_ledger(folder / LEDGER_NAME).opening.site)
    ledger.amend(DatasetIdentity(dataset, fingerprint), reason)
    content = ledger.content()
    say(results(), f"{dataset}: fingerprint {fingerprint[:12]}, {len(content.spendings(dataset))} releases stay booked")
    say(results(), f"head: {content.chain.head}")


def show(
    folder: Folder,
    verify: Annotated[bool, typer.Option("--verify", help="Compute every epsilon again.")] = False,
    noted: Noted = None,
    last: Annotated[int, typer.Option(min=0, help="Show so many of the latest releases; 0 for all.")] = 20,
    json: Json = False,
) -> None:
    """Show the ledger."""
    from grandrounds.privacy.ledger.ledger import LEDGER_NAME, read_ledger

    content = read_ledger(folder / LEDGER_NAME)
    if noted is not None:
        content.chain.require_head(noted)
    datasets = [entry for name in content.datasets for entry in accounts(content, name, verify)]
    shown = content.bookings[-last:] if last else content.bookings
    if json:
        say_json(
            {
                "site": content.opening.site,
                "opened": content.opening.time,
                "lines": len(content.chain.lines),
                "head": content.chain.head,
                "verified": verify,
                "datasets": datasets,
                "releases": [booking.to_json() for booking in shown],
            }
        )
        return
    _print(content, datasets, shown, verify)


def accounts(content: LedgerContent, name: str, verify: bool) -> list[dict[str, Any]]:
    """What one data set has spent, for each unit that a release was to protect, as plain values.

    An infinite epsilon is None. With ``verify`` there is a bound by a second method as well.

    Raises:
        DataError: if ``verify`` is set and an epsilon is not what follows from the releases.
    """
    from grandrounds.protocol.spending import counted

    bookings = [booking for booking in content.bookings if booking.dataset.name == name]
    latest = bookings[-1]
    found = []
    for unit in dict.fromkeys(booking.spending.unit for booking in bookings):
        booked = unit is latest.spending.unit
        epsilon = latest.epsilon if booked and not verify else content.spent(name, latest.delta, unit)
        entry = {"dataset": name, "releases": len(bookings), "unit": unit.value, "delta": latest.delta}
        entry["outside_budget"] = len(bookings) - len(counted(booking.spending for booking in bookings))
        entry["epsilon"] = _or_none(epsilon)
        if verify:
            bound = content.spent_bound(name, latest.delta, unit)
            _require_agreement(content, latest, latest.epsilon if booked else epsilon, epsilon, bound)
            entry["epsilon_bound"] = _or_none(bound)
        found.append(entry)
    return found


def _require_agreement(content: LedgerContent, latest: Booking, booked: float, computed: float, bound: float) -> None:
    where = f"{content.chain.path}: data set {latest.dataset.name!r}"
    # isclose is true for two infinities as well.
    if not math.isclose(booked, computed, rel_tol=RELATIVE_DIFFERENCE, abs_tol=1e-9):
        raise DataError(f"{where} was booked with epsilon {booked:.6g}, but its releases amount to {computed:.6g}")
    if computed > bound * (1 + RELATIVE_DIFFERENCE):
        raise DataError(
            f"{where}: epsilon {computed:.6g} is above its Rényi bound {bound:.6g}; one of the two is wrong"
        )


def _print(content: LedgerContent, datasets: list[dict[str, Any]], shown: tuple[Booking, ...], verify: bool) -> None:
    console = results()
    say(console, f"privacy ledger of {content.opening.site}, opened {content.opening.time}")
    if datasets:
        console.print(_dataset_table(datasets))
        console.print(_release_table(shown, len(content.bookings)))
    else:
        say(console, "nothing was released")
    if content.chain.interrupted:
        say(console, "the last booking was interrupted before it was complete: nothing was released on it")
    say(console, f"head: {content.chain.head} ({len(content.chain.lines)} lines, chain unbroken)")
    if verify:
        say(console, "verified: every epsilon follows from the releases and is within its Rényi bound")


def _dataset_table(datasets: list[dict[str, Any]]) -> Table:
    table = Table("data set", "protects", title="spent", title_justify="left")
    columns = [
        "releases",
        "outside_budget",
        "delta",
        "epsilon",
        *(["epsilon_bound"] if "epsilon_bound" in datasets[0] else []),
    ]
    for column in columns:
        table.add_column(column.replace("epsilon_bound", "Rényi bound").replace("_", " "), justify="right")
    for entry in datasets:
        table.add_row(entry["dataset"], entry["unit"], *(_text(entry[column]) for column in columns))
    return table


def _release_table(shown: tuple[Booking, ...], count: int) -> Table:
    title = f"releases ({len(shown)} of {count})"
    table = Table(title=title, title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in NUMERIC else "left")
    for booking in shown:
        values = booking.to_json()
        table.add_row(*(_text(values[column]) for column in COLUMNS))
    return table


def _text(value: Any) -> str:
    if value is None:
        return "infinite"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
