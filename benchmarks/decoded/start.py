"""Seconds until ``grandrounds simulate --images FOLDER`` opens its first round, by the number and size of the images.

Photographs are drawn, all different, in two folders of classes. What is measured is the command, from its start until its
record has the first round: import, looking through the folder, division, decoding into the cache, and all checks. The time
of 100,000 images is measured where the images are small, and follows from two numbers of images where they are large.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.measure import run
from benchmarks.tables import markdown_table
from grandrounds.federation.server.record import EVENTS
from grandrounds.seeding import numpy_generator

SIDE, GOAL = 112, 100_000
CASES = {(200, 150): (5_000, GOAL), (4000, 3000): (50, 200)}
POLL_SECONDS = 0.05


def measured(options: argparse.Namespace) -> dict[str, Any]:
    found = []
    for (width, height), counts in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            images = Path(folder) / "images"
            numbers = (
                tuple(max(count // 100, 20 * place) for place, count in enumerate(counts, 1))
                if options.quick
                else counts
            )
            for begin, end in zip((0, *numbers), numbers, strict=False):
                draw(images, width, height, begin, end)
                for sizing in ("exact", "draft"):
                    cost = first_round(images, Path(folder) / f"run-{end}-{sizing}", sizing)
                    found.append({"width": width, "height": height, "images": end, "sizing": sizing, **cost})
                    print(found[-1], file=sys.stderr)
    return {"cases": found}


def draw(folder: Path, width: int, height: int, begin: int, end: int) -> None:
    """Add images with these numbers, of two classes."""
    generator = numpy_generator("photographs", width, begin)
    noise = generator.integers(-8, 9, (height, width, 3), dtype=np.int16)
    for number in range(begin, end):
        place = folder / ("even", "odd")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        few = Image.fromarray(generator.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        pixels = np.asarray(few.resize((width, height)), np.int16) + noise
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{number:06}.jpg", quality=90)


def first_round(images: Path, workspace: Path, sizing: str) -> dict[str, float]:
    """Wall-clock and CPU seconds of a command until its first round, with two threads for decoding."""
    command = [sys.executable, "-m", "grandrounds.cli", "simulate", "--images", str(images), "--sites", "2"]
    options = (
        f"problem.image_size={SIDE}",
        f"problem.preprocessing={sizing}",
    )
    command += ["--workspace", str(workspace), *(part for option in options for part in ("--set", option))]
    events = workspace / "state" / "ridge" / "server" / EVENTS
    begun = time.perf_counter()
    with (workspace.with_suffix(".txt")).open("w+") as printed:
        program = subprocess.Popen(command, stdout=printed, stderr=printed)
        while not (events.is_file() and '"round_start"' in events.read_text()):
            if program.poll() is not None:
                printed.seek(0)
                raise SystemExit(printed.read())
            time.sleep(POLL_SECONDS)
        wall = time.perf_counter() - begun
        fields = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()
        program.send_signal(signal.SIGKILL)
        program.wait()
    ticks = sum(map(int, fields[11:15]))  # of the program, and of the processes that it has waited for
    return {"wall": round(wall, 2), "cpu": round(ticks / os.sysconf("SC_CLK_TCK"), 2)}


def tables(result: dict[str, Any]) -> str:
    rows = []
    sizes = dict.fromkeys((case["width"], case["height"], case["sizing"]) for case in result["cases"])
    for width, height, sizing in sizes:
        few, many = (
            case
            for case in result["cases"]
            if (case["width"], case["height"], case["sizing"]) == (width, height, sizing)
        )
        each = {kind: (many[kind] - few[kind]) / (many["images"] - few["images"]) for kind in ("wall", "cpu")}
        goal = {kind: many[kind] + each[kind] * (GOAL - many["images"]) for kind in each}
        rows.append(
            [
                f"{width}x{height}",
                sizing,
                *(f"{one['images']:,}: {one['wall']:.0f} s, {one['cpu']:.0f} CPU s" for one in (few, many)),
                1000 * each["cpu"],
                goal["wall"],
                goal["cpu"],
            ]
        )
    header = ["image", "preprocessing", "few", "many", "CPU ms for one more", f"{GOAL:,}: s", "CPU s"]
    return markdown_table(header, rows, 1)


if __name__ == "__main__":
    run(__file__, measured, tables)
