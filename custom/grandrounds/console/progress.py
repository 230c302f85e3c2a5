"""The progress of a run, from the events that it appends to its record: a bar on a terminal, lines elsewhere.

The run may be in this process or in FLARE's; the file is the same.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.status import Status
from rich.text import Text

from grandrounds.console.output import duration, say
from grandrounds.protocol.names import PACE_ROUNDS
from grandrounds.reporting.tables import format_list

FOLLOW_SECONDS = 0.1

Event = dict[str, Any]


class EventTail:
    """Reads the events that are appended to a file from now on, also if the file is replaced; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # The old file stays open, so that no new file can get its inode number and the two can be distinguished.
        self._stream: BinaryIO | None = None
        self._partial = b""
        self._open()
        if self._stream:
            self._stream.seek(0, os.SEEK_END)

    def read(self) -> list[Event]:
        """The complete events that were not returned before, in order."""
        events = self._new_events()
        if self._replaced():
            self.close()
            self._open()
            events += self._new_events()
        return events

    def close(self) -> None:
        """Close the file."""
        if self._stream:
            self._stream.close()
        self._stream, self._partial = None, b""

    def _open(self) -> None:
        if self._path.is_file():
            self._stream = self._path.open("rb")

    def _replaced(self) -> bool:
        try:
            now = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return self._stream is None or now.st_ino != os.fstat(self._stream.fileno()).st_ino

    def _new_events(self) -> list[Event]:
        if self._stream is None:
            return []
        *lines, self._partial = (self._partial + self._stream.read()).split(b"\n")
        return [event for event in map(_event, lines) if event]


def _event(line: bytes) -> Event:
    """The event of a line; empty for half a line of a crash."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return {}


@contextmanager
def following(path: Path, show: Callable[[Event], None]) -> Iterator[None]:
    """A block in which ``show`` is called with every new event of a file, in a thread of its own."""
    tail, done = EventTail(path), threading.Event()

    def follow() -> None:
        last = False
        while not last:
            last = done.wait(FOLLOW_SECONDS)
            for event in tail.read():
                show(event)

    thread = threading.Thread(target=follow, name="follow-events", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        tail.close()


@dataclass
class RunProgress:
    """The state of a run, from its events so far.

    Attributes:
        rounds: total number; 0 until the run has started.
        done: complete rounds, those before a resumption included.
        site: the site that answered last, after its ``task``.
        losses: of the training sites in the current round.
        score: validation metric, its value and the round of the model scored last.
        seconds: durations of the rounds since this start.
        counted: whether images were counted, so that there may be no model.
    """

    rounds: int = 0
    done: int = 0
    site: str = ""
    task: str = ""
    losses: list[float] = field(default_factory=list)
    score: tuple[str, float, int] | None = None
    seconds: list[float] = field(default_factory=list)
    counted: bool = False

    def update(self, event: Event) -> list[str]:
        """Apply an event and return the lines to print about it."""
        handler = {
            "resume": self._resumed,
            "start": self._started,
            "round_start": self._round_started,
            "answer": self._answered,
            "score": self._scored,
            "dropped": self._dropped,
            "sum": self._summed,
            "round_end": self._round_ended,
            "remark": lambda remark: [str(remark["text"])],
            "finished": self._finished,
        }.get(event["event"])
        return handler(event) if handler else []

    @property
    def pace(self) -> float:
        """Seconds per round, the median of the last rounds, as the first one also reads the data; NaN without rounds."""
        return median(self.seconds[-PACE_ROUNDS:]) if self.seconds else math.nan

    @property
    def time_left(self) -> float:
        """Seconds until the last round is complete; NaN if it is not known."""
        return (self.rounds - self.done) * self.pace

    @property
    def note(self) -> str:
        """One line about the current state: last site, loss, pace, time left."""
        parts = [f"{self.site} {self.task}"] if self.site else []
        if self.losses:
            parts.append(f"loss {fmean(self.losses):.3f}")
        if self.seconds:
            parts += [f"{self.pace:.1f} s/round", f"{duration(self.time_left)} left"]
        return ", ".join(parts)

    def _resumed(self, event: Event) -> list[str]:
        self.done = event["after_round"]
        return [f"resumed from the checkpoint after round {self.done}"]

    def _started(self, event: Event) -> list[str]:
        self.rounds = event["rounds"]
        if self.done >= self.rounds:
            return [f"all {self.rounds} rounds were complete before; the selected model is tested again"]
        return [f"{self.rounds} rounds, {len(event['sites'])} sites: {format_list(event['sites'])}"]

    def _round_started(self, event: Event) -> list[str]:
        self.losses = []
        return []

    def _answered(self, event: Event) -> list[str]:
        self.site, self.task = event["site"], event["task"]
        loss = event["metrics"].get("loss")
        if self.task == "train" and loss is not None:
            self.losses.append(loss)
        return []

    def _scored(self, event: Event) -> list[str]:
        self.score = (str(event["by"]), float(event["score"]), int(event["round"]))
        return []

    def _dropped(self, event: Event) -> list[str]:
        when = f"round {event['round']}" if event["round"] <= self.rounds else "evaluation"
        return [f"{when}: {event['site']} is dropped: {event['reason']}"]

    def _summed(self, event: Event) -> list[str]:
        sites, left_out = event["contributors"], event.get("left_out", [])
        without = f", without {', '.join(left_out)}" if left_out else ""
        lost = f"; it is lost: {event['lost']}" if "lost" in event else ""
        return [f"sum of {event['quantity']} over {len(sites)} of {len(sites) + len(left_out)} sites{without}{lost}"]

    def _round_ended(self, event: Event) -> list[str]:
        self.done = event["round"]
        self.counted |= "statistics" in event
        self.seconds.append(event["round_seconds"])
        parts = [f"{len(event['answered'])} of {len(event['asked'])} sites"]
        if self.losses:
            parts.append(f"loss {fmean(self.losses):.3f}")
        if self.score:
            metric, value, model_round = self.score
            parts.append(f"validation {metric} {value:.3f} after round {model_round}")
        parts += [f"{event['round_seconds']:.1f} s", f"{duration(self.time_left)} left"]
        return [f"round {self.done}/{self.rounds}: {', '.join(parts)}"]

    def _finished(self, event: Event) -> list[str]:
        counted = event["selected"]["metric"] is None and self.counted
        return (
            ["finished"] if counted else [f"finished: the model after round {event['selected']['round']} is selected"]
        )


@contextmanager
def progress_on(console: Console) -> Iterator[Callable[[Event], None]]:
    """What shows each event: a bar on a terminal, with important events as lines above it; elsewhere a line per round."""
    state = RunProgress()
    if not console.is_terminal:

        def print_lines(event: Event) -> None:
            for line in state.update(event):
                say(console, line)

        yield print_lines
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None, note="")

        def move(event: Event) -> None:
            lines = state.update(event)
            for line in lines if event["event"] in ("resume", "start", "dropped", "remark", "sum", "finished") else ():
                say(console, line)
            training = state.done < state.rounds
            description = f"round {min(state.done + 1, state.rounds)}/{state.rounds}" if training else "testing"
            bar.update(task, description=description, completed=state.done, total=state.rounds or None, note=state.note)

        yield move


PATIENCE_SECONDS = 2.0
Step = Callable[[str], None]
"""Called with what a command does next."""


class Steps:
    """The steps of a command, shown once it has taken ``patience`` seconds: a line that changes on a terminal, else lines.

    Without a terminal there is at most one line every ``patience`` seconds.
    """

    def __init__(self, console: Console, patience: float) -> None:
        self._console = console
        self._patience = patience
        self._lock = threading.Lock()
        self._text, self._due, self._ended = "", False, False
        self._status: Status | None = None
        self._timer = self._started()

    def step(self, text: str) -> None:
        """Note the step; show it when the command has been silent for long enough."""
        with self._lock:
            self._text = text
            if self._due or self._status:
                self._show()

    def end(self) -> None:
        """Show nothing more, and clear the line on a terminal."""
        with self._lock:
            self._ended = True
            self._timer.cancel()
            if self._status:
                self._status.stop()

    def _started(self) -> threading.Timer:
        timer = threading.Timer(self._patience, self._waited)
        timer.daemon = True
        timer.start()
        return timer

    def _waited(self) -> None:
        with self._lock:
            self._due = True
            if self._text and not self._ended:
                self._show()

    def _show(self) -> None:
        if self._console.is_terminal:
            self._status = self._status or self._console.status("")
            self._status.update(Text(self._text))
            self._status.start()
            return
        say(self._console, self._text)
        self._text, self._due = "", False
        self._timer = self._started()


@contextmanager
def steps_on(console: Console, wanted: bool = True) -> Iterator[Step]:
    """A context in which the steps of a command are shown, if wanted and if it takes long."""
    if not wanted:
        yield lambda _: None
        return
    steps = Steps(console, PATIENCE_SECONDS)
    try:
        yield steps.step
    finally:
        steps.end()


LINES = 10
"""Number of lines that show the progress of reading where there is no terminal."""


@contextmanager
def reading_on(console: Console, wanted: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of reading DICOM headers, if wanted: a bar on a terminal, some lines elsewhere."""
    if not wanted:
        yield lambda done, total: None
        return
    if console.is_terminal:
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("reading patients from DICOM headers", total=None, visible=False)
            yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)
        return
    printed = -1

    def report(done: int, total: int) -> None:
        """Print a line for each tenth."""
        nonlocal printed
        if done * LINES // max(total, 1) > printed:
            printed = done * LINES // max(total, 1)
            say(console, f"reading patients from DICOM headers: {done} of {total}")

    yield report
