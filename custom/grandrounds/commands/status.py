"""``grandrounds status``: the state of a kit or a run, once or as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from grandrounds.commands.options import Json
from grandrounds.console.output import duration, notes, results, say, say_json, table_of
from grandrounds.errors import GrandRoundsError
from grandrounds.files import replacing

if TYPE_CHECKING:
    from grandrounds.deployment.operation.status import Status

EXIT = {"ok": 0, "warning": 1, "critical": 2}
SHOWN_SCORES = ("balanced_accuracy", "accuracy", "auc_macro", "log_likelihood")
UNREADABLE = 3
"""As in Nagios and its relatives: nothing is known, which is neither fine nor a warning."""


def status(
    kit: Annotated[Path | None, typer.Option(help="The startup kit of a person, a server or a site.")] = None,
    run: Annotated[Path | None, typer.Option(help="Folder of a run, running or finished.")] = None,
    no_network: Annotated[bool, typer.Option("--no-network", help="Do not contact the server.")] = False,
    prometheus: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write numbers for Prometheus' textfile collector.")
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Serve a page on this machine that refreshes itself, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0: a free one.")] = 0,
    every: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="Seconds between two looks of the page.")] = 5,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page's token, so that its address stays; made if missing.")
    ] = None,
    json: Json = False,
) -> None:
    """Show the state of a federation or a run: sites, jobs, rounds, disk, certificates, privacy.

    A person's kit asks the server; the kit of a server or a site is read on its own machine. A site's shows the cause of
    the last failed task of each run, which the server is not told. The exit status is for monitoring: 0 is fine, 1 a
    warning, 2 a failure, 3 that the state cannot be read.

    The page of --page is read-only, is served at the loopback address only, and needs the token in the address that is
    printed. Under the same address, /metrics has the numbers for Prometheus, and /status.json all of it.

    Examples:
      grandrounds status --kit kits/researcher@consortium.example
      grandrounds status --kit /opt/kits/hospital-a --json
      grandrounds status --kit /opt/kits/hospital-a --prometheus /var/lib/node_exporter/grandrounds.prom
      grandrounds status --run runs/fedperl --page
    """
    from grandrounds.deployment.operation.metrics import UNREAD, exposition

    if (kit is None) == (run is None):
        raise typer.BadParameter("give either --kit or --run")
    if page:
        _serve(_source(kit, run, not no_network), port, every, token_file)
        return
    try:
        current = _source(kit, run, not no_network)()
    except (GrandRoundsError, OSError) as error:
        _write(prometheus, UNREAD)
        say(notes(), f"error: {error}")
        raise typer.Exit(UNREADABLE) from None
    _write(prometheus, exposition(current))
    if json:
        say_json(current.to_json())
    else:
        _show(current)
    raise typer.Exit(EXIT[current.level])


def _serve(source: Callable[[], Status], port: int, every: int, token_file: Path | None) -> None:
    from grandrounds.deployment.operation.monitor import Monitor, read_token, serve_monitor

    monitor = Monitor(source, every, read_token(token_file))
    serve_monitor(monitor, port, lambda address: say(notes(), f"the page is at {address}; Ctrl-C ends it"))


def _write(path: Path | None, text: str) -> None:
    if path is not None:
        with replacing(path) as stream:
            stream.write(text.encode())


def _source(kit: Path | None, run: Path | None, network: bool) -> Callable[[], Status]:
    from grandrounds.deployment.kit.read import read_kit
    from grandrounds.deployment.operation.status import kit_status, run_status
    from grandrounds.reporting.runs import record_folder

    if kit is not None:
        own = read_kit(kit)
        return lambda: kit_status(own, network)
    assert run is not None
    folder = record_folder(run)
    return lambda: run_status(folder)


def _answered(current: Status) -> Iterator[str]:
    for word, line in (("released", current.released), ("refused", current.refused)):
        if line:
            run = f" of run {line['run']}" if line["run"] else ""
            number = "" if line["round"] is None else f", round {line['round']}"
            why = f": {line['reason']}" if line.get("reason") else ""
            yield f"last {word}: {line['time']}, {line['task']}{run}{number}{why}"


def _own_scores(current: Status) -> Iterator[str]:
    for run, models in current.own_scores.items():
        for model, scores in models.items():
            shown = ", ".join(f"{name} {scores[name]:.3f}" for name in SHOWN_SCORES if name in scores)
            yield f"run {run}: {model} model on {scores.get('n', 0):.0f} test images of this site: {shown or 'no score'}"


def _show(current: Status) -> None:
    from grandrounds.deployment.operation.status import failure_line

    console = results()
    if current.sites:
        seen = {site: facts.get("last_seen") for site, facts in current.sites.items()}
        ago = {site: "-" if seconds is None else f"{seconds:.0f} s ago" for site, seconds in seen.items()}
        rows = ([site, ago[site], facts.get("flare") or "-"] for site, facts in current.sites.items())
        console.print(table_of(("site", "last seen", "FLARE"), rows))
    if current.runs:
        console.print(_run_table(current.runs))
    for name, epsilon in current.epsilon.items():
        say(console, f"privacy spent by {name}: epsilon {epsilon:.3g}")
    failed = (failure_line(run, task) for run, task in current.failed_tasks.items())
    new = (line for line in failed if line not in current.warnings)
    for line in (*_answered(current), *new, *_own_scores(current)):
        say(console, line)
    words = {"ok": "OK", "warning": "WARN", "failure": "FAIL"}
    for finding in sorted(current.findings, key=lambda finding: [*words].index(finding.level)):
        say(console, f"{words[finding.level]}: {finding.check}: {finding.message}")
    say(console, f"{current.name} ({current.kind}, grandrounds {current.version}): {current.level}")


def _run_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each run; running ones come first."""
    from grandrounds.deployment.operation.status import comparable_scores, describe_score
    from grandrounds.federation.server.record import absences

    table = Table("run", "status", "round", "best validation score", "answers by site", "not at work")
    for run in runs:
        ago, left = run["ended"], run["seconds_left"]
        when = f", {duration(ago)} ago" if ago is not None else "" if left is None else f", {duration(left)} left"
        scores = comparable_scores(run["scores"])
        best = max(scores, key=lambda number: (scores[number]["score"], number)) if scores else 0
        score = f"after round {best}: {describe_score(scores[best])}" if scores else "-"
        answers = ", ".join(f"{site} {number}" for site, number in run["contributions"].items())
        cells = (run["name"], f"{run['status']}{when}", f"{run['round']} of {run['rounds']}", score, answers or "-")
        table.add_row(
            *map(Text, cells),
            Text(", ".join(f"{site} {words.partition(':')[0]}" for site, words in absences(run).items()) or "-"),
        )
    return table
