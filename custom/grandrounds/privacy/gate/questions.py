"""What a server has asked, on disk before any work: a task whose answer never comes is paid for like one that is answered.

Each task that scores a model is a question about few patients that costs no epsilon, so the questions of a job are counted.
A training is open until it has been answered. The process that works on it has a lock on its file, which ends with the
process: a training whose file is not locked any more has ended without an answer, and is booked then.

An answer that may have been lost on its way is kept as it left. A server that goes on after its last checkpoint asks the
same again, and gets the same bits: no new noise is drawn, and nothing is booked or counted a second time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from grandrounds.errors import DataError
from grandrounds.files import write_bytes, write_json
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.ledger.lines import Booking, DatasetIdentity, Purpose, read_line
from grandrounds.protocol.spending import Spending

ASKED_FOLDER, OPEN_FOLDER, ANSWERS_FOLDER = "scored", "open", "answers"
"""Folders beside the ledger: a count for each job, a file for each training that is not answered, and each run's last
answers."""
MOST_ANSWERS = 12
"""Of a run, at a site; the server says how many it may need."""
FORGOTTEN_SECONDS = 30 * 24 * 3600.0


def count_question(folder: Path, what: str) -> int:
    """Count one more question of a job, or of whatever ``what`` names; it is on disk when this returns."""
    path = folder / ASKED_FOLDER / f"{hashlib.sha256(what.encode()).hexdigest()[:32]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:  # two processes may count at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        count = 1 + (json.loads(path.read_text(encoding="utf-8"))["answers"] if path.is_file() else 0)
        write_json(path, {"job": what, "answers": count})
    return count


class SentAnswers:
    """The last answers of a run as they have left, each by what was asked.

    Args:
        folder: of the ledger.
        run_id: of the start of the run, which a resumed run keeps.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder = folder / ANSWERS_FOLDER / hashlib.sha256(run_id.encode()).hexdigest()[:32]

    def find(self, question: str) -> bytes | None:
        """What this question was answered; None if it was not, or long ago."""
        path = next(self._folder.glob(f"*-{question[:32]}"), None)
        return path.read_bytes() if path else None

    def keep(self, question: str, round_number: int, answer: bytes, checkpoints: Collection[int]) -> None:
        """Write an answer, and forget those that will not be asked for again.

        Args:
            question: see :func:`~grandrounds.protocol.question.question_id`.
            round_number: of the task.
            answer: as it leaves.
            checkpoints: the rounds after which the server may go on; if the newest is damaged, after the one before.
        """
        write_bytes(self._folder / f"{round_number:06d}-{question[:32]}", answer, private=True)
        before = sorted(checkpoints)[-2:-1]
        kept = sorted(path for path in self._folder.glob("??????-*") if not before or _round_of(path) > before[0])
        for path in {*self._folder.glob("??????-*")} - {*kept[-MOST_ANSWERS:]}:
            path.unlink(missing_ok=True)
        for folder in self._folder.parent.iterdir():
            if folder != self._folder and time.time() - folder.stat().st_mtime > FORGOTTEN_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _round_of(path: Path) -> int:
    return int(path.name.partition("-")[0])


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
    booking = read_line(line, str(path))
    if not isinstance(booking, Booking):
        raise DataError(f"{path} is no list of releases; restore it from a backup")
    name = booking.dataset.name
    # The data set may have been amended since.
    latest = DatasetIdentity(name, ledger.content().datasets.get(name, booking.dataset.fingerprint))
    return ledger.book(booking.purpose, latest, booking.spending, booking.delta)
