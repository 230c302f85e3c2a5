"""The process of a job ends when the process of the kit that has started it is gone."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

JOB_MODULES = ("worker_process", "runner_process")
"""FLARE's modules that run a job at a site and at the server."""
GRACE_SECONDS = 60.0
"""In which FLARE ends the process in its own way."""
PARENT_POLL_SECONDS = 1.0


def runs_a_job() -> bool:
    """Whether FLARE has started this process for a job."""
    return Path(sys.argv[0]).stem in JOB_MODULES


def end_with_parent(grace: float = GRACE_SECONDS, poll: float = PARENT_POLL_SECONDS) -> None:
    """End this process when its parent has been gone for ``grace`` seconds.

    FLARE 2.9 does so too, but not where a site's process dies while a job starts: the job's process then reports to it for
    ever, fifteen times a second, and its client that was started again runs the next job beside it.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(poll)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
