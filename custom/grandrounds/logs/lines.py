"""A line of the structured log ``log.json``, whose form is that of ``line.schema.json`` beside this file.

FLARE writes the file; the overlay names :class:`LineFormatter` in the kit's ``log_config.json``. Events of a run and
outcomes of a site's gate are written through :func:`log_event`, so that one file has all of what happens at a party.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

LINE_SCHEMA = Path(__file__).with_name("line.schema.json")
MESSAGE_EVENT = "log"
"""The event of a line that is a message."""
JOB_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The form of an id that FLARE gives a job."""
JOB_OPTIONS = ("-n", "--job_id")
"""The options by which a job's process gets its job from FLARE."""
CONTEXT = re.compile(r"^\[(identity=[^\[\]]*)\]: ")
"""What FLARE's components write before a message."""
RECORD_ATTRIBUTE = "grandrounds"
"""The attribute of a record that has an event's fields."""
FIELDS = ("site", "task", "reason")
"""Fields of an event that a line has where the event has them."""
_under_way: dict[str, int | None] = {"round": None}


def log_event(
    logger: logging.Logger, event: str, message: str, level: int = logging.INFO, **about: str | int | None
) -> None:
    """Write that something has happened.

    Args:
        logger: of the module in which it has.
        event: its name, of small letters and ``_``.
        message: a sentence for people.
        level: of :mod:`logging`.
        about: ``job`` and ``round``, where they are not those of this process, and ``site``, ``task`` and ``reason``.
    """
    logger.log(level, "%s", message, extra={RECORD_ATTRIBUTE: {"event": event, **about}})


def enter_round(number: int | None) -> None:
    """Let all lines of this process have this round; None outside of rounds."""
    _under_way["round"] = number


class LineFormatter(logging.Formatter):
    """Formats records as lines of ``log.json``.

    Args:
        party: the name of the kit.
        arguments: of the process's command line, which name the job in the process of one.
    """

    def __init__(self, party: str, arguments: Sequence[str] = ()) -> None:
        super().__init__()
        self._party = party
        self._job = job_of([*(arguments or sys.argv)])

    def format(self, record: logging.LogRecord) -> str:
        """One line, also where the message has several."""
        message = record.getMessage()
        context = CONTEXT.match(message)
        about: dict[str, Any] = getattr(record, RECORD_ATTRIBUTE, {})
        number = about.get("round", _under_way["round"])
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": logging.getLevelName(level_of(record.levelno)),
            "party": self._party,
            "job": _valid_job(about.get("job")) or _valid_job(_run_of(context)) or self._job,
            "round": number if isinstance(number, int) else None,
            "event": about.get("event", MESSAGE_EVENT),
            "logger": getattr(record, "fullName", record.name),
            "message": message[context.end() :] if context else message,
            **{name: str(about[name]) for name in FIELDS if about.get(name)},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def level_of(number: int) -> int:
    """One of the five levels that have a name, for a number between them.

    Example:
        >>> [level_of(number) for number in (0, 20, 25, 60)]
        [10, 20, 20, 50]
    """
    return max(logging.DEBUG, min(logging.CRITICAL, number // 10 * 10))


def job_of(arguments: Sequence[str]) -> str | None:
    """The job that a command line of FLARE's names; None if it names none.

    Example:
        >>> job_of(["-m", "x", "-n", "3f2b8a44-0f3e-4ad4-9d0e-0a7c1c5f9b12"])
        '3f2b8a44-0f3e-4ad4-9d0e-0a7c1c5f9b12'
    """
    return next((value for name, value in pairwise(arguments) if name in JOB_OPTIONS and JOB_ID.fullmatch(value)), None)


def _run_of(context: re.Match[str] | None) -> str | None:
    """The job in what a component of FLARE's has written before its message."""
    match = re.search(r"\brun=([0-9a-f-]+)", context[1]) if context else None
    return match[1] if match else None


def _valid_job(job: Any) -> str | None:
    """A job's id; None for what a simulation calls its run."""
    return job if isinstance(job, str) and JOB_ID.fullmatch(job) else None
