"""The head of a site's ledger as the server has last returned it, in a file of the kit outside the ledger's folder.

A ledger that was set back lacks it. The gate finds that out when a task comes; from this file the site's administrator sees
it before.
"""

from __future__ import annotations

from pathlib import Path

from grandrounds.files import write_json
from grandrounds.json_files import read_json_object

NOTED_HEAD = "ledger_head.json"
"""In a kit's folder of states."""


def note_head(states: Path, head: str) -> None:
    """Keep a head that came with a task; without one nothing is written, and what is noted stays.

    Raises:
        OSError: if the disk does not take it.
    """
    if head and noted_head(states) != head:
        write_json(states / NOTED_HEAD, {"head": head})


def noted_head(states: Path) -> str:
    """The head that was noted last; empty if none was, or the file cannot be read."""
    try:
        return str(read_json_object(states / NOTED_HEAD)["head"])
    except (OSError, ValueError, KeyError):
        return ""
