"""Is a submitted job still alive? FLARE's status alone does not tell: it says RUNNING for jobs whose server has died."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grandrounds.federation.record import SUMMARY

State = Literal["waiting", "running", "ended", "lost"]
RUNNING, ENDED = "RUNNING", "FINISHED"


@dataclass
class JobWatch:
    """Judges a job by what the server says of it at successive moments.

    FLARE lists a job as running while its processes are there. Between the end of these and the final status lie some
    seconds; a job that stays in between has lost its server.

    Attributes:
        job: FLARE's id.
        patience: seconds that a job may say RUNNING without any process.

    Example:
        >>> watch = JobWatch("j", patience=20)
        >>> [watch.observe("RUNNING", alive, seconds) for alive, seconds in ((["j"], 0), ([], 5), ([], 30))]
        ['running', 'running', 'lost']
    """

    job: str
    patience: float = 30.0
    _gone_since: float | None = None

    def observe(self, status: str, alive: Collection[str], seconds: float) -> State:
        """Judge.

        Args:
            status: FLARE's, such as ``SUBMITTED`` or ``FINISHED:ABNORMAL``.
            alive: ids of the jobs that the server has processes of.
            seconds: time of the observation, by any clock that does not go back.
        """
        if status.startswith(ENDED):
            return "ended"
        if status != RUNNING:
            self._gone_since = None
            return "waiting"
        if self.job in alive:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = seconds
        gone = self._gone_since is not None and seconds - self._gone_since >= self.patience
        return "lost" if gone else "running"


def summary_in(download: Path) -> dict[str, Any]:
    """The run's own summary in a downloaded job; nothing if there is none, or only half of one.

    FLARE calls a run that has lost a site ABNORMAL although its model is fine; the summary tells what was achieved.
    """
    path = download / "workspace" / "results" / SUMMARY
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
