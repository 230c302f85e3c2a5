"""Which part of the program uses the CPU time of a round without training, and how long a round waits for the disk.

A timer interrupts the process every few milliseconds of CPU time; each interrupt counts for the innermost active part.
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
from unittest.mock import patch

SITES, PARAMETERS, ROUNDS = 10, 100, 400
SAMPLE_SECONDS = 0.002
FILES = ("files", "checkpoint", "tensor_files", "record", "store")
TENSORS = ("messages", "plain", "tensors", "precision", "averaging", "means", "robust")
PARTS = {
    "flare": "FLARE's events, contexts, tasks and messages", "files": "checkpoint, record and states",
    "tensors": "checks of messages and sums", "rest": "rounds, sites and the engine",
    "training": "the training function",
}  # fmt: skip


def part_of(frame: FrameType | None) -> str:
    """The part to which the innermost frame of FLARE, of the package or of the benchmark belongs."""
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
    """Percent of the interrupts by part, and milliseconds of waiting per round."""
    from benchmarks.parties import one_set_of_images, run_clocked, site_names, trivial_job

    counts, waits, fsync = Counter[str](), list[float](), os.fsync

    def timed_fsync(file: int) -> None:
        began = time.perf_counter()
        fsync(file)
        waits.append(time.perf_counter() - began)

    job, names = trivial_job(PARAMETERS, ROUNDS), site_names(SITES)
    signal.signal(signal.SIGPROF, lambda number, frame: counts.update([part_of(frame)]))
    with tempfile.TemporaryDirectory() as folder, patch.object(os, "fsync", timed_fsync):
        images = one_set_of_images(Path(folder) / "images")
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
        run_clocked(job, Path(folder), names, images)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {
        "sites": SITES,
        "parameters": PARAMETERS,
        "rounds": ROUNDS,
        "samples": counts.total(),
        "percent": {part: round(100 * counts[part] / counts.total(), 1) for part in PARTS},
        "milliseconds_of_disk_per_round": round(1000 * sum(waits) / ROUNDS, 3),
    }
