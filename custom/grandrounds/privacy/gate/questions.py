"""What a server has asked, on disk before any work: a task whose answer never comes is paid for like one that is answered.

Each task that scores a model is a question about few patients that costs no epsilon, so the questions of a job are counted.
A training is open until it has been answered. The process that works on it has a lock on its file, which ends with the
process: a training whose file is not locked any more has ended without an answer, and is booked then.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grandrounds.errors import DataError
from grandrounds.files import write_json
from grandrounds.privacy.ledger.entries import Booking, DatasetIdentity, Purpose, read_line
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.spending import Spending

ASKED_FOLDER, OPEN_FOLDER = "scored", "open"
"""Folders with a count for each job, and with a file for each training that is not answered, beside the ledger."""


def count_question(folder: Path, what: str) -> int:
    """Count one more question of a job, or of whatever ``what`` names; it is on disk when this returns."""
    path = folder / ASKED_FOLDER / f"{hashlib.sha256(what.encode()).hexdigest()[:32]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:  # two processes may count at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        count = 1 + (json.loads(path.read_text(encoding="utf-8"))["answers"] if path.is_file() else 0)
        write_json(path, {"job": what, "answers": count})
    return count


class OpenTraining:
    """A training that has begun and will cost this much, whether its answer comes or not.

    Args:
        folder: of the ledger.
        dataset: what is trained on.
        costs: purposes and costs of the expected releases.
        delta: of the policy.
    """

    def __init__(
        self, folder: Path, dataset: DatasetIdentity, costs: Sequence[tuple[Purpose, Spending]], delta: float
    ) -> None:
        self._path = folder / OPEN_FOLDER / f"{secrets.token_hex(16)}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        begun = self._path.with_suffix(".new")
        self._file = begun.open("x", encoding="utf-8")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        lines = [Booking("", purpose, dataset, cost, delta, 0.0).to_json() for purpose, cost in costs]
        json.dump(lines, self._file)
        self._file.flush()
        os.fsync(self._file.fileno())
        begun.rename(self._path)  # under its name only when it is locked and whole

    def answered(self) -> None:
        """The training is over, and what it has released is booked."""
        self._path.unlink(missing_ok=True)
        self._file.close()


def book_unanswered(folder: Path, ledger: Ledger) -> Iterator[Booking]:
    """Book the trainings that have ended without an answer, as if they had given it.

    Raises:
        DataError: if a file of one is damaged, or the ledger cannot be written.
    """
    for path in sorted((folder / OPEN_FOLDER).glob("*.json")):
        try:
            file = path.open("r", encoding="utf-8")
        except FileNotFoundError:  # another process has settled it
            continue
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # it is being worked on
            if not path.exists():
                continue
            for line in json.load(file):
                yield _book(ledger, line, path)
            path.unlink()


def _book(ledger: Ledger, line: dict[str, Any], path: Path) -> Booking:
    found = read_line(line, str(path))
    if not isinstance(found, Booking):
        raise DataError(f"{path} is no list of releases; restore it from a backup")
    name = found.dataset.name
    # The data set may have been amended since.
    latest = DatasetIdentity(name, ledger.content().datasets.get(name, found.dataset.fingerprint))
    return ledger.book(found.purpose, latest, found.spending, found.delta)
