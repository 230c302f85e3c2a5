"""Measure the commands that a user waits for, as whole processes: listing jobs, the doctor, a report, a short simulation.

Commands are taken in turn; times are CPU time of the process and its children, beside that of importing torch alone.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.measure import run, spread, table
from grandrounds.api.sites import Sites

IMAGES, CLASSES, SITES, SIDE = 240, 4, 4, (450, 600)
FLOOR = "python -c 'import torch'"


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All commands; the runs that are reported are made before."""
    repeats = 1 if options.quick else options.repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["GRANDROUNDS_CACHE"] = str(folder / "cache")
        draw_images(folder / "images", IMAGES)
        Sites.from_folders(folder / "images", folder / "sites", patient_pattern="(P[0-9]+)_")
        short = ["simulate", "fedavg", "--sites", "2", "--rounds", "2", "--workers", "1", "--workspace"]
        runs = [str(folder / f"run{number}") for number in (1, 2)]
        for one in runs:
            cpu_seconds(grandrounds(*short, one))
        turns = []
        for number in range(repeats):
            commands = {
                FLOOR: [sys.executable, "-c", "import torch"],
                "jobs": grandrounds("jobs"),
                f"doctor, {IMAGES} images of 600 x 450": grandrounds("doctor", "--sites-dir", str(folder / "sites")),
                "report of two small runs": grandrounds("report", *runs, "--out", str(folder / f"report{number}")),
                "simulate fedavg, 2 sites, 2 rounds": grandrounds(*short, str(folder / f"again{number}")),
            }
            turns.append({title: cpu_seconds(command) for title, command in commands.items()})
    found = {title: spread([turn[title] for turn in turns], 2) for title in turns[0]}
    return {"cases": [{"command": title, "cpu_seconds": seconds} for title, seconds in found.items()]}


def grandrounds(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "grandrounds.cli", *arguments]


def cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[2:])} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def draw_images(folder: Path, count: int) -> None:
    """Write JPEG files of smooth noise, ``SITE/CLASS/PATIENT.jpg``."""
    generator = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"site-{number % SITES + 1}" / f"class-{number // SITES % CLASSES}" / f"P{number:03d}_1.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(generator.integers(0, 256, (15, 20, 3), dtype=np.uint8))
        coarse.resize(SIDE[::-1], Image.Resampling.BICUBIC).save(path, quality=90)


def tables(result: dict[str, Any]) -> str:
    floor = next(case["cpu_seconds"]["median"] for case in result["cases"] if case["command"] == FLOOR)
    rows = [{**case, "beyond": case["cpu_seconds"]["median"] - floor} for case in result["cases"]]
    columns = {
        "command": "command", "s of CPU": "cpu_seconds.median", "lowest": "cpu_seconds.lowest",
        "highest": "cpu_seconds.highest", "beyond torch's import": "beyond",
    }  # fmt: skip
    return table(columns, rows, 2)


if __name__ == "__main__":
    run(__file__, measured, tables, repeats={"type": int, "default": 5})
