"""``grandrounds status`` and ``grandrounds monitor``: the state of a kit or a run, once or as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from grandrounds.commands.options import Json
from grandrounds.console.output import duration, notes, results, say, say_json

if TYPE_CHECKING:
    from grandrounds.deployment.operation.status import Status

EXIT = {"ok": 0, "warning": 1, "critical": 2}
STATUS_HELP = """Show the state of a federation: sites, jobs, rounds, disk, certificates, privacy.

A person's kit asks the server; the kit of a server or a site is read on its own machine. A site's shows the cause of the
last failed task of each run, which the server is not told. The exit status is for monitoring:
0 is fine, 1 a warning, 2 a failure.

[bold]Examples[/bold]

\b
  grandrounds status --kit kits/researcher@consortium.example
  grandrounds status --kit /opt/kits/hospital-a --json
"""
MONITOR_HELP = """Show the same as a page on this machine that refreshes itself, until Ctrl-C.

The page is read-only, is served at the loopback address only, and needs the token in the address that is printed.

[bold]Examples[/bold]

\b
  grandrounds monitor --kit kits/researcher@consortium.example
  grandrounds monitor --run runs/fedperl
"""
Kit = Annotated[Path | None, typer.Option(help="The startup kit of a person, a server or a site.")]


def status(
    kit: Annotated[Path, typer.Option(help="The startup kit of a person, a server or a site.")],
    no_network: Annotated[bool, typer.Option("--no-network", help="Do not contact the server.")] = False,
    json: Json = False,
) -> None:
    """Show the state and end with its level."""
    from grandrounds.deployment.kit.read import read_kit
    from grandrounds.deployment.operation.status import kit_status

    found = kit_status(read_kit(kit), not no_network)
    if json:
        say_json({**asdict(found), "level": found.level})
    else:
        _show(found)
    raise typer.Exit(EXIT[found.level])


def monitor(
    kit: Kit = None,
    run: Annotated[Path | None, typer.Option(help="Folder of a run, running or finished.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port at the loopback address; 0: a free one.")] = 0,
    every: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="Seconds between two looks.")] = 5,
) -> None:
    """Serve the page."""
    from grandrounds.deployment.operation.monitor import serve_monitor

    serve_monitor(
        _source(kit, run), port, every, lambda address: say(notes(), f"the page is at {address}; Ctrl-C ends it")
    )


def _source(kit: Path | None, run: Path | None) -> Callable[[], Status]:
    from grandrounds.deployment.kit.read import read_kit
    from grandrounds.deployment.operation.status import kit_status, run_status
    from grandrounds.reporting.runs import record_folder

    if (kit is None) == (run is None):
        raise typer.BadParameter("give either --kit or --run")
    if kit is not None:
        found = read_kit(kit)
        return lambda: kit_status(found)
    assert run is not None
    folder = record_folder(run)
    return lambda: run_status(folder)


def _failed(found: Status) -> Iterator[str]:
    for name, task in found.failed_tasks.items():
        number = "" if task["round"] is None else f" of round {task['round']}"
        yield f"run {name}: {task['task']}{number} failed at {task['time']}: {task['cause']}"


def _show(found: Status) -> None:
    from grandrounds.deployment.operation.status import comparable_scores, describe_score

    console = results()
    if found.sites:
        table = Table("site", "last seen", "FLARE", "rounds contributed")
        for site, facts in found.sites.items():
            seen = facts.get("last_seen")
            cells = ("-" if seen is None else f"{seen:.0f} s ago", facts.get("flare"), facts.get("contributions"))
            table.add_row(site, *("-" if cell is None else str(cell) for cell in cells))
        console.print(table)
    for run in found.runs:
        left = "" if run["seconds_left"] is None else f", {duration(run['seconds_left'])} left"
        say(console, f"run {run['name']}: {run['status']}, round {run['round']} of {run['rounds']}{left}")
        scores = comparable_scores(run["scores"])
        if scores:
            best = max(scores, key=lambda number: (scores[number]["score"], number))
            say(console, f"best validation score, after round {best}: {describe_score(scores[best])}")
    for name, epsilon in found.epsilon.items():
        say(console, f"privacy spent by {name}: epsilon {epsilon:.3g}")
    for line in _failed(found):
        say(console, line)
    if found.free is not None:
        say(console, f"disk: {found.free / 1024**3:.1f} GiB free")
    if found.certificate_days is not None:
        say(console, f"certificates: {found.certificate_days:.0f} days left")
    for text in [*(f"WARN: {message}" for message in found.warnings), *(f"FAIL: {text}" for text in found.failures)]:
        say(console, text)
    say(console, f"{found.name} ({found.kind}, grandrounds {found.version}): {found.level}")
