"""What the commands print: results on the standard output, everything else on the standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from grandrounds.files import without_controls

WIDTH_WITHOUT_TERMINAL = 160
INTERRUPTED = 130  # exit status after Ctrl-C, by the shells' convention


def results() -> Console:
    """The console for results; without a terminal it is wide enough for every row of a table."""
    return _console(stderr=False)


def notes() -> Console:
    """The console for progress and remarks, on the standard error."""
    return _console(stderr=True)


def say(console: Console, text: str = "") -> None:
    """Print text as it is: brackets are not markup, and long lines are not broken."""
    console.print(without_controls(text), markup=False, highlight=False, soft_wrap=True)


def say_json(content: Any) -> None:
    """Print one JSON document on the standard output."""
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def table_of(
    headings: Iterable[str], rows: Iterable[Iterable[str | Text]], right: Collection[str] = (), title: str | None = None
) -> Table:
    """A table with a row for each entry; ``right`` are the headings of columns of numbers."""
    columns = [Column(heading, justify="right" if heading in right else "left") for heading in headings]
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


def megabytes(size: float) -> str:
    """A number of bytes as megabytes (10^6).

    Example:
        >>> megabytes(1_250_000)
        '1.2 MB'
    """
    return f"{size / 1e6:.1f} MB"


def duration(seconds: float) -> str:
    """A duration as text.

    Example:
        >>> duration(7.4), duration(75), duration(3700)
        ('7 s', '1 min 15 s', '1 h 01 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class _Terminal(Console):
    """Shows texts of other people, in tables as well: they neither are markup nor control the terminal."""

    def render_str(self, text: str, **style: Any) -> Text:
        """Rich's hook for each text, such as a cell."""
        return super().render_str(without_controls(text), **style)


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH_WITHOUT_TERMINAL
    return _Terminal(stderr=stderr, width=width, markup=False, emoji=False)
