"""Refusals and the site's audit trail.

The server gets one of a few fixed sentences: an error's text may contain a file name or a value, so no text made at run time
leaves a site with a gate. The audit trail, which stays at the site, has a line with the details for every answer.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from grandrounds.checks import reraised_as
from grandrounds.errors import GrandRoundsError
from grandrounds.files import owners_alone
from grandrounds.logs.lines import log_event
from grandrounds.protocol.refusal import Reason, Refusal


class Refused(GrandRoundsError):
    """Nothing may leave: the reason is for the server, the detail for the site's audit trail only.

    ``by_training``: whether it depends on what a training has computed from the site's images, and not on the job alone.
    ``refusal``: what the server gets, if it is more than the reason; of the job's names and the policy alone.
    """

    def __init__(self, reason: Reason, detail: str, by_training: bool = False, refusal: Refusal | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.sent, self.by_training = str(refusal or reason), by_training
        self.reason, self.detail = reason, detail


def refusing(reason: Reason, *errors: type[Exception], where: str = "") -> AbstractContextManager[None]:
    """Let errors of these kinds be refusals for this reason; their words, after ``where``, are the detail."""
    return reraised_as(partial(Refused, reason), *errors, where=where)


AUDIT_NAME = "audit.jsonl"
FAILED = "failed"
"""The outcome of a task that an executor could not do; what has left in place of its result has a line of its own."""
NO_WARNING = frozenset({"released", "repeated", "sum"})
"""Outcomes that are no warning in a log."""
MAX_TEXT_LENGTH = 500
_logger = logging.getLogger(__name__)


def write_audit(folder: Path, outcome: str, details: Mapping[str, Any]) -> None:
    """Append a line, which is on disk when this returns; long texts are truncated.

    The outcome is ``released``, ``repeated`` (an answer that may have been lost, again), ``refused``, ``stripped``,
    ``sum`` (an answer about a secure sum) or ``unanswered``; ``failed`` and ``clipped`` (many numbers of a sum were beyond
    its bounds) come before the answer's own line, ``unwalled`` before that of a training child without walls, ``changed``
    before that of the first task that has read other images under the same manifest. The log has the same without details.

    Raises:
        Refused: if the file cannot be written.
    """
    line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "outcome": outcome, **details}
    shortened = {key: value[:MAX_TEXT_LENGTH] if isinstance(value, str) else value for key, value in line.items()}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(folder / AUDIT_NAME, "a", encoding="utf-8", opener=owners_alone) as stream:
            stream.write(json.dumps(shortened) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise Refused(Reason.AUDIT, f"{folder / AUDIT_NAME}: {error.strerror or error}") from error
    fields = {name: details.get(name) for name in ("job", "round", "task", "reason")}
    words = ": ".join(str(fields[name]) for name in ("task", "reason") if fields[name])
    level = logging.INFO if outcome in NO_WARNING else logging.WARNING
    log_event(_logger, outcome, ": ".join(filter(None, (outcome, words))), level, **fields)
