"""The steps of commands that only read and compute, shown where they take long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress
from rich.status import Status
from rich.text import Text

from grandrounds.console.output import say

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
