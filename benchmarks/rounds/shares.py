"""Which part of the program takes the CPU time of a round without training, and how long a round waits for the disk.

The process is interrupted every few milliseconds of CPU time; each interrupt is counted for the innermost part at work.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

SITES, PARAMETERS, ROUNDS = 10, 100, 400
SAMPLE_SECONDS = 0.002
FILES = ("files", "checkpoint", "tensor_files", "record", "store")
TENSORS = ("messages", "tensors", "precision", "aggregation", "averaging")
PARTS = {
    "flare": "FLARE's events, contexts, tasks and messages",
    "files": "checkpoint, record and states",
    "tensors": "checks of messages and sums",
    "rest": "rounds, sites and the engine",
    "training": "the training function",
}


class Samples:
    """Counts interrupts by part while a block runs, and the seconds of its waits for the disk."""

    def __init__(self) -> None:
        self.parts: Counter[str] = Counter()
        self.waited = 0.0

    def __enter__(self) -> Samples:
        self._fsync = os.fsync
        os.fsync = self._timed_fsync
        signal.signal(signal.SIGPROF, self._note)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
        return self

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.fsync = self._fsync

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.parts[part_of(frame)] += 1

    def _timed_fsync(self, file: int) -> None:
        began = time.perf_counter()
        self._fsync(file)
        self.waited += time.perf_counter() - began


def part_of(frame: FrameType | None) -> str:
    """The part that the innermost frame of FLARE, of the package or of the benchmark belongs to."""
    while frame:
        path = Path(frame.f_code.co_filename)
        if "nvflare" in path.parts:
            return "flare"
        if "grandrounds" in path.parts:
            return "files" if path.stem in FILES else "tensors" if path.stem in TENSORS else "rest"
        if path.stem == "parties":
            return "training"
        frame = frame.f_back
    return "rest"


def shares() -> dict[str, Any]:
    """Percent of the samples by part, and milliseconds of waiting per round."""
    from benchmarks.parties import one_set_of_images, run_clocked, site_names, trivial_job

    with tempfile.TemporaryDirectory() as folder:
        images = one_set_of_images(Path(folder) / "images")
        job, names = trivial_job(PARAMETERS, ROUNDS), site_names(SITES)
        with Samples() as samples:
            run_clocked(job, Path(folder) / "run", names, images)
    counted = sum(samples.parts.values())
    return {
        "sites": SITES,
        "parameters": PARAMETERS,
        "rounds": ROUNDS,
        "samples": counted,
        "percent": {part: round(100 * samples.parts[part] / counted, 1) for part in PARTS},
        "milliseconds_of_disk_per_round": round(1000 * samples.waited / ROUNDS, 3),
    }
