"""Rehearse a consortium's faults: its own kits on one machine, with faults that come at random moments.

python -m benchmarks.rehearsal KITS --hours 1
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from benchmarks.rehearsal import rehearse as rehearsing
from grandrounds.commands.options import Json
from grandrounds.console.output import notes, results, say, say_json
from grandrounds.errors import GrandRoundsError

REHEARSE_HELP = """Rehearse a consortium's faults on this machine, with its own kits and synthetic images.

KITS is a folder that grandrounds provision or grandrounds poc has written. It is not changed: copies of the kits run, with
the consortium's policies, with ledgers of their own, and with a server that listens on this machine only. Every site
reaches it through a proxy that can be slow or cut. One run is undisturbed; then runs follow one another, submitted again
by themselves, while faults come in random order, each when the last one is recovered from.

A table says for every fault what it has cost. Exit status 1: a run has left no usable model, or a process or file is left.

[bold]Examples[/bold]

\b
  python -m benchmarks.rehearsal kits --hours 1
  python -m benchmarks.rehearsal runs/poc --hours 0.2 --seed 3 --out runs/rehearsal-3 --json
"""

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(help=REHEARSE_HELP)
def rehearse(
    kits: Annotated[Path, typer.Argument(metavar="KITS", help="Folder with the kits of server, sites and people.")],
    hours: Annotated[float, typer.Option(min=0.01, help="For how long faults come; the last run still ends.")],
    seed: Annotated[int, typer.Option(min=0, help="Of the faults and of every run.")] = 0,
    rounds: Annotated[int, typer.Option(min=3, help="Rounds of a run.")] = 12,
    every: Annotated[float, typer.Option(min=0.0, help="Mean seconds from a recovery to the next fault.")] = 20.0,
    out: Annotated[Path, typer.Option(help="Folder for results and logs; new or empty.")] = Path("runs/rehearsal"),
    json: Json = False,
) -> None:
    """Rehearse, and show what each fault has cost."""
    started, console = time.monotonic(), notes()
    result = rehearsing.rehearse(
        kits,
        out,
        rehearsing.Rehearsal(hours, seed, rounds, every),
        lambda line: say(console, f"[{time.monotonic() - started:6.0f} s] {line}"),
    )
    if json:
        say_json(result)
    else:
        _show(result)
        say(results(), f"results: {out / rehearsing.REHEARSAL}; logs: {out / 'logs'}")
    if not rehearsing.passed(result):
        raise typer.Exit(1)


def _show(result: dict[str, Any]) -> None:
    console = results()
    console.print(_fault_table(result["by_fault"]))
    console.print(_run_table(result))
    if result["largest_difference"] is not None:
        say(console, f"largest difference of a score from the undisturbed run: {result['largest_difference']:.3f}")
    for kind in sorted(set(result["nothing_to_harm"])):
        say(console, f"{kind}: drawn when there was nothing to harm, {result['nothing_to_harm'].count(kind)} times")
    left = f"{result['left_processes']} processes, {result['left_files']} files"
    say(console, f"left over: {left}; the kits are {'as they were' if result['kits_unchanged'] else 'changed'}")


def _fault_table(found: dict[str, dict[str, Any]]) -> Table:
    table = Table("fault")
    for name in (
        "times",
        "rounds missed\n(of sites)",
        "rounds\nrepeated",
        "s to recover\n(median)",
        "longest",
        "usable",
    ):
        table.add_column(name, justify="right")
    for kind, one in found.items():
        seconds = ["-" if one[name] is None else f"{one[name]:.0f}" for name in ("median_seconds", "longest_seconds")]
        usable = f"{one['usable']} of {one['times']}"
        table.add_row(kind, str(one["times"]), str(one["missed"]), str(one["repeated"]), *seconds, usable)
    return table


def _run_table(result: dict[str, Any]) -> Table:
    names = list(result["undisturbed"]["scores"])
    table = Table("run", "status", "attempts", "rounds", "missed", "s", *(name.replace("_", " ") for name in names))
    for run in (result["undisturbed"], *result["runs"]):
        scores = [f"{run['scores'][name]:.3f}" if name in run["scores"] else "-" for name in names]
        numbers = [str(run[name]) for name in ("attempts", "rounds", "missed")]
        table.add_row(run["name"], run["status"], *numbers, f"{run['seconds']:.0f}", *scores)
    return table


if __name__ == "__main__":
    try:
        app()
    except GrandRoundsError as error:
        sys.exit(f"error: {error}")
