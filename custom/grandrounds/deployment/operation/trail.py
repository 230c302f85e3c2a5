"""What a site's audit trail says of its last answers: the last release, the last refusal, and why tasks have failed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grandrounds.errors import GrandRoundsError
from grandrounds.privacy.gate.audit import AUDIT_NAME, FAILED, Reason

UNANSWERED = "the training has ended without an answer: its process was killed, or the job aborted; see log.txt"
OF_THE_SITE = frozenset({Reason.DATASET, Reason.DISK, Reason.AUDIT, Reason.FAILED})
"""Refusals that the next job will meet, too, although policy, ledger and manifest as they are now need not show it."""
OF_A_TASK = ("time", "job", "run", "task", "round", "dataset")


@dataclass(frozen=True)
class Trail:
    """The last answers of a site.

    Attributes:
        released: time, job, run, task, round and data set of the last release; empty before the first.
        refused: the same of the last refusal, with ``reason`` and ``detail``.
        failures: of each run that has one the last failed task, with ``cause``, by the run's name or the job's id; the run
            whose task has failed last is the last.
    """

    released: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)

    def standing(self, seconds: float, now: datetime | None = None) -> str:
        """The last refusal as a sentence, if its reason is at the site, it is recent, and nothing was released since.

        Args:
            seconds: how old it may be.
            now: the time; None for the clock's.
        """
        if self.refused.get("reason") not in OF_THE_SITE or str(self.refused["time"]) < self.released.get("time", ""):
            return ""
        age = (now or datetime.now(UTC)) - datetime.fromisoformat(str(self.refused["time"]))
        if age.total_seconds() > seconds:
            return ""
        return (
            f"the last task was refused at {self.refused['time']}: {self.refused['reason']} ({self.refused['detail']})"
        )


def read_trail(folder: Path) -> Trail:
    """Read the audit trail in a site's folder of ledger and trail; without one nothing has been answered.

    Raises:
        GrandRoundsError: if it cannot be read; the line is named.
    """
    path = folder / AUDIT_NAME
    trail = Trail()
    for number, text in enumerate(_lines(path), 1):
        try:
            line = json.loads(text)
            _take(trail, line)
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise GrandRoundsError(f"{path}: line {number} is damaged; restore the folder from a backup") from error
    return trail


def _take(trail: Trail, line: Mapping[str, Any]) -> None:
    outcome = line.get("outcome")
    about = {name: line.get(name) for name in OF_A_TASK}
    if outcome in ("released", "refused"):
        about["time"] = datetime.fromisoformat(line["time"]).astimezone(UTC).isoformat(timespec="seconds")
    if outcome == "released":
        trail.released.update(about)
    elif outcome == "refused":
        trail.refused.update({**about, "reason": line.get("reason"), "detail": line.get("detail")})
    task = {"task": line.get("task"), "round": line.get("round")}
    run, cause = str(line.get("run") or f"of job {line.get('job', 'unknown')}"), _cause(line)
    known = outcome == "released" and task.items() <= trail.failures.get(run, {}).items()
    if cause and not known:
        trail.failures.pop(run, None)
        trail.failures[run] = {"time": line.get("time"), **task, "cause": cause}


def _lines(path: Path) -> Iterator[str]:
    try:
        if path.is_file():
            with path.open(encoding="utf-8") as stream:
                yield from stream
    except (OSError, ValueError) as error:
        raise GrandRoundsError(f"{path}: {error}") from error


def _cause(line: Mapping[str, Any]) -> str:
    """Why the task of a line has failed; empty if it has not, or if the line does not say it."""
    kept = {"refused": "detail", FAILED: "detail", "released": "in_place_of"}
    outcome = str(line.get("outcome"))
    return UNANSWERED if outcome == "unanswered" else str(line.get(kept.get(outcome, ""), ""))
