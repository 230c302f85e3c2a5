"""``grandrounds ledger``: the epsilon that a site has spent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.commands.options import Json
from grandrounds.console.output import notes, results, say, say_json, table_of
from grandrounds.errors import DataError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from grandrounds.privacy.ledger.ledger import LedgerContent
    from grandrounds.privacy.ledger.lines import Booking


LEDGER_COLUMNS = (
    *("time", "job", "run", "round", "release", "dataset"),
    *("mechanism", "unit", "sensitivity", "sigma", "epsilon"),
)


SPENT_COLUMNS = ("releases", "outside_budget", "delta", "epsilon")


OF_SCORES = (
    "round of scores: counts_validation are of the model of the round before; other counts and curves are of "
    "the tests at the end of a run, whose round is one after the last training"
)


NUMERIC = {"round", "sensitivity", "sigma", "epsilon"}


RELATIVE_DIFFERENCE = 1e-2


Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder with the site's ledger.")]


Noted = Annotated[str | None, typer.Option(metavar="HASH", help="A head that was noted earlier.")]


def ledger() -> None:
    """Create, show, amend and repair a site's privacy ledger."""


def create(folder: Folder, site: Annotated[str, typer.Option(help="The site's name, as in its startup kit.")]) -> None:
    """Create a site's ledger, once, before its first job.

    A site whose ledger is missing sends nothing; it never creates one itself. An existing ledger is not changed.

    Example:
      grandrounds ledger create local/privacy --site hospital-a
    """
    from grandrounds.privacy.ledger.ledger import Ledger
    from grandrounds.protocol.messages import require_run_name

    content = Ledger.create(folder, require_run_name(site, "--site")).content()
    say(results(), f"privacy ledger of {site}, opened {content.opening.time}, with {len(content.bookings)} releases")
    say(results(), f"head: {content.chain.head}")


def amend(
    folder: Folder,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Its name in the ledger.")],
    reason: Annotated[str, typer.Option(help="Why, in a sentence.")],
    manifest: Annotated[Path | None, typer.Option(help="The data set's new manifest.")] = None,
    distinct_from: Annotated[
        str | None, typer.Option(metavar="OTHER", help="A data set whose patients are other people.")
    ] = None,
) -> None:
    """Record that a data set has changed, or that its patients are other people than another one's.

    With --manifest its name and its spending stay, and the new fingerprint is computed. A data set with a patient of
    another one is refused, because each patient has one budget: where numbers of two lists agree by chance, say so by
    --distinct-from.

    Examples:
      grandrounds ledger amend local/privacy skin --manifest skin.csv --reason "images of May added"
      grandrounds ledger amend local/privacy skin --distinct-from blood --reason "numbers of two studies"
    """
    from grandrounds.data.manifest import read_manifest
    from grandrounds.deployment.kit.read import require_owner
    from grandrounds.privacy.ledger.ledger import LEDGER_NAME, Ledger, dataset_fingerprint, read_ledger
    from grandrounds.privacy.ledger.lines import DatasetIdentity

    if (manifest is None) == (distinct_from is None):
        raise UsageError("give either --manifest or --distinct-from")
    ledger = Ledger(folder, read_ledger(folder / LEDGER_NAME).opening.site)
    require_owner(folder)
    if distinct_from is not None:
        ledger.distinguish(dataset, distinct_from, reason)
        say(results(), f"{dataset} and {distinct_from}: patients that are called alike are different people")
    if manifest is not None:
        records = read_manifest(manifest)
        fingerprint = dataset_fingerprint((record.image for record in records), (record.group for record in records))
        ledger.amend(DatasetIdentity(dataset, fingerprint), reason)
        booked = sum(booking.dataset.name == dataset for booking in ledger.content().bookings)
        say(results(), f"{dataset}: fingerprint {fingerprint[:12]}, {booked} releases stay booked")
    say(results(), f"head: {ledger.content().chain.head}")


def contributors(
    folder: Folder,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Its name in the ledger.")],
    sites: Annotated[
        list[str], typer.Argument(metavar="SITE...", help="All hospitals of the next sums, this one too.")
    ],
) -> None:
    """Book over which hospitals the secure sums of a data set are from now on, after one has left for good.

    Sums over other hospitals show the difference: each administrator books the same hospitals, or there is no sum. Enough
    new hospitals need no booking.

    Example:
      grandrounds ledger contributors local/privacy skin hospital-a hospital-b hospital-d
    """
    from grandrounds.deployment.kit.read import require_owner
    from grandrounds.privacy.ledger.ledger import LEDGER_NAME, Ledger, read_ledger
    from grandrounds.privacy.secure_sums.attempt import renewed_batches

    require_owner(folder)
    content = read_ledger(folder / LEDGER_NAME)
    renewed, gone = renewed_batches(content.notes, dataset, content.opening.site, sites)
    ledger = Ledger(folder, content.opening.site)
    ledger.renew_notes(renewed)
    say(notes(), f"WARN: this shows the server the sums of {', '.join(gone)}")
    say(results(), f"sums of {dataset} are over {', '.join(sorted(sites))}, or these and enough new hospitals")
    say(results(), f"head: {ledger.content().chain.head}")


def show(
    folder: Folder,
    verify: Annotated[bool, typer.Option("--verify", help="Recompute every epsilon.")] = False,
    noted: Noted = None,
    last: Annotated[int, typer.Option(min=0, help="Number of latest releases to show; 0 for all.")] = 20,
    json: Json = False,
) -> None:
    """Show the releases of a site and the epsilon spent.

    FOLDER contains the site's ledger. The hash chain is always checked; --verify also recomputes every data set's epsilon
    by two methods. The head is the last line's hash: note it elsewhere, and --noted checks later that the file was not
    replaced.

    Examples:
      grandrounds ledger show local/privacy
      grandrounds ledger show local/privacy --verify --noted 3f0c... --last 0
      grandrounds ledger show local/privacy --json
    """
    content = _read(folder, noted)
    datasets = [entry for name in content.datasets for entry in accounts(content, name, verify)]
    shown = content.bookings[-last:] if last else content.bookings
    if not json:
        _show_ledger(content, datasets, shown, verify)
        return
    head = {"lines": len(content.chain.lines), "head": content.chain.head, "verified": verify}
    releases = [booking.to_json() for booking in shown]
    opening = {"site": content.opening.site, "opened": content.opening.time}
    say_json({**opening, **head, "datasets": datasets, "releases": releases})


def _read(folder: Path, noted: str | None) -> LedgerContent:
    from grandrounds.privacy.ledger.ledger import LEDGER_NAME, read_ledger

    content = read_ledger(folder / LEDGER_NAME)
    if noted is not None:
        content.chain.require_head(noted)
    return content


def accounts(content: LedgerContent, name: str, verify: bool) -> list[dict[str, Any]]:
    """The spending of one data set for each unit of its releases, as plain values; an infinite epsilon is None.

    With a unit of the site it is that of all its data sets together, also where the lines of an earlier version say less.

    Args:
        content: of the ledger.
        name: of the data set.
        verify: whether to recompute epsilon and to add a bound by a second method.

    Raises:
        DataError: if ``verify`` is set and an epsilon does not follow from the releases.
    """
    from grandrounds.protocol.spending import counted

    bookings = [booking for booking in content.bookings if booking.dataset.name == name]
    latest = bookings[-1]
    entries = []
    for unit in dict.fromkeys(booking.spending.unit for booking in bookings):
        booked = unit is latest.spending.unit and not (unit.of_site and len(content.datasets) > 1)
        epsilon = latest.epsilon if booked and not verify else content.spent(name, latest.delta, unit)
        entry = {"dataset": name, "releases": len(bookings), "unit": unit.value, "delta": latest.delta}
        entry["adjacency"] = unit.adjacency
        entry["outside_budget"] = len(bookings) - len(counted(booking.spending for booking in bookings))
        entry["epsilon"] = _or_none(epsilon)
        if verify:
            bound = content.spent_bound(name, latest.delta, unit)
            _require_agreement(content, latest, latest.epsilon if booked else epsilon, epsilon, bound)
            entry["epsilon_bound"] = _or_none(bound)
        entries.append(entry)
    return entries


def _require_agreement(content: LedgerContent, latest: Booking, booked: float, computed: float, bound: float) -> None:
    where = f"{content.chain.path}: data set {latest.dataset.name!r}"
    # isclose is also true for two infinities.
    if not math.isclose(booked, computed, rel_tol=RELATIVE_DIFFERENCE, abs_tol=1e-9):
        raise DataError(f"{where} was booked with epsilon {booked:.6g}, but its releases have epsilon {computed:.6g}")
    if computed > bound * (1 + RELATIVE_DIFFERENCE):
        raise DataError(
            f"{where}: epsilon {computed:.6g} is above its Rényi bound {bound:.6g}; one of the two is wrong"
        )


def _show_ledger(
    content: LedgerContent, datasets: list[dict[str, Any]], shown: tuple[Booking, ...], verify: bool
) -> None:
    console = results()
    say(console, f"privacy ledger of {content.opening.site}, opened {content.opening.time}")
    if datasets:
        console.print(_dataset_table(datasets))
        console.print(_release_table(shown, len(content.bookings)))
        from grandrounds.protocol.messages import WITHHELD

        if any(booking.purpose.release in WITHHELD for booking in shown):
            say(console, OF_SCORES)
    else:
        say(console, "nothing was released")
    if content.chain.interrupted:
        say(console, "the last booking is incomplete, because the process died; its release did not leave")
    for loss in content.losses:
        say(console, f"loss of lines declared at {loss.time}, the signature of {loss.signer} is valid: {loss.reason}")
    say(console, f"head: {content.chain.head} ({len(content.chain.lines)} lines, chain intact)")
    if verify:
        say(console, "verified: every epsilon follows from the releases and is within its Rényi bound")


def _dataset_table(datasets: list[dict[str, Any]]) -> Table:
    columns = [name for name in (*SPENT_COLUMNS, "epsilon_bound") if name in datasets[0]]
    numbers = [column.replace("epsilon_bound", "Rényi bound").replace("_", " ") for column in columns]
    rows = (
        [entry["dataset"], f"{entry['unit']}, {entry['adjacency']}", *(_text(entry[column]) for column in columns)]
        for entry in datasets
    )
    return table_of(("data set", "protects", *numbers), rows, numbers, title="spent")


def _release_table(shown: tuple[Booking, ...], count: int) -> Table:
    rows = ([_text(values[column]) for column in LEDGER_COLUMNS] for values in (each.to_json() for each in shown))
    return table_of(LEDGER_COLUMNS, rows, NUMERIC, title=f"releases ({len(shown)} of {count})")


def _text(value: Any) -> str:
    if value is None:
        return "infinite"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def repair(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The startup kit of the server, or of the site.")],
    known: Annotated[
        Path, typer.Option(metavar="FILE", help="What the server knows: written there, read at the site.")
    ],
    site: Annotated[str | None, typer.Option(help="At the server: whose ledger has lost lines.")] = None,
    reason: Annotated[str | None, typer.Option(help="At the site: what has happened, in a sentence.")] = None,
    signed_by: Annotated[
        Path | None, typer.Option(metavar="KIT", help="At the site: a kit of its administrator; default: KIT itself.")
    ] = None,
    noted: Annotated[
        list[str] | None, typer.Option(metavar="HASH", help="At the site: a missing head that was noted; repeatable.")
    ] = None,
) -> None:
    """Go on with a ledger that has lost lines, where there is no backup: book the worst case of what is missing.

    First the server writes what its records know of the site's releases. Then the site declares the loss: for each private
    data set it books the larger of the highest target of its policy and of all that the server knows. What was left is kept.
    The line names the missing heads, so that the server takes the site in again, and is signed.

    Examples:
      grandrounds ledger repair /opt/kits/server --site hospital-a --known hospital-a-known.json
      grandrounds ledger repair /opt/kits/hospital-a --known hospital-a-known.json --reason "disk lost on 3 May"
    """
    if (site is None) == (reason is None):
        raise UsageError("give --site at the server, or --reason at the site")
    if site is not None:
        _write_known(kit, site, known)
    if reason is not None:
        _declare_loss(kit, known, reason, signed_by, noted or [])


def _write_known(kit: Path, site: str, out: Path) -> None:
    from grandrounds.deployment.kit.read import read_kit
    from grandrounds.deployment.recovery import server_knowledge

    knowledge = server_knowledge(read_kit(kit), site)
    knowledge.write(out)
    for name, spent in knowledge.spent.items():
        reported = f", epsilon {spent.epsilon:.4g} was reported" if spent.epsilon else ""
        say(results(), f"{name}: {spent.updates} updates{reported}")
    for run in knowledge.unread:
        say(notes(), f"WARN: the record of run {run} cannot be read; what it knows is missing")
    say(results(), f"last head of the ledger: {knowledge.head or 'unknown'}")
    say(results(), f"written to {out}; send it to the site's administrator")


def _declare_loss(kit: Path, known: Path, reason: str, signed_by: Path | None, noted: list[str]) -> None:
    from grandrounds.deployment.kit.read import read_kit
    from grandrounds.deployment.recovery import declare_kit_loss, read_knowledge

    site = read_kit(kit)
    loss = declare_kit_loss(site, read_knowledge(known), noted, reason, read_kit(signed_by) if signed_by else site)
    for booking in loss.bookings:
        say(
            results(),
            f"{booking.dataset.name}: epsilon {booking.epsilon:.4g} at delta {booking.delta:g} counts as spent for "
            f"{booking.spending.unit.described()}",
        )
    say(results(), f"signed by {loss.signer}; missing were {len(loss.heads)} heads, which the server may know")
