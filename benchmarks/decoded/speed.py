"""Measure the way from a JPEG file to a square, before and now, and of one new image in a cache of many.

Photographs are drawn. ``before`` is the way of version 2 of the preprocessing, in which arrays went back and forth between
two calls of Pillow. All times are CPU time of one thread, and each step is taken in turn with the others. A run takes about
a minute.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.measure import Steps, clocked, in_turn, milliseconds, run, spread, table
from grandrounds.data.images.cache import open_cache
from grandrounds.data.images.files.encoded import EncodedFile
from grandrounds.data.images.ordered import kept_blocks
from grandrounds.data.images.preparation import Preparation
from grandrounds.seeding import numpy_generator

IN_A_ROW = 4
CASES = ((450, 600, 112), (768, 1024, 224), (3000, 4000, 112), (3000, 4000, 224))


def measured(options: argparse.Namespace) -> dict[str, Any]:
    repeats, many = (2, 20) if options.quick else (15, 1000)
    return {"cases": [case(*shape, repeats) for shape in CASES], "added": added(many)}


def photograph(height: int, width: int) -> bytes:
    """A smooth picture with noise, as JPEG."""
    generator = numpy_generator("photograph")
    smooth = Image.fromarray(generator.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((width, height))
    pixels = np.asarray(smooth, np.int16) + generator.integers(-8, 9, (height, width, 3), dtype=np.int16)
    stream = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def before(data: bytes, side: int) -> NDArray[np.uint8]:
    image = Image.open(io.BytesIO(data))
    image.load()
    pixels = np.array(image.convert("RGB"))
    picture = Image.fromarray(pixels).convert("RGB")
    resized = np.array(picture.resize((side, side), Image.Resampling.BILINEAR))
    return resized.reshape(side, side, 3)


def now(data: bytes, side: int, sizing: str) -> NDArray[np.uint8]:
    return Preparation(side, 3, sizing=sizing).square(EncodedFile(data, "a.jpg")).pixels


def several(prepare: Callable[[], Any], context: AbstractContextManager[None]) -> None:
    """Prepare some images in a row, as a cache does."""
    with context:
        for _ in range(IN_A_ROW):
            prepare()


def case(height: int, width: int, side: int, repeats: int) -> dict[str, Any]:
    data = photograph(height, width)
    steps: Steps = {"before": lambda: several(partial(before, data, side), nullcontext())}
    for name in ("exact", "draft", "proportion"):
        steps[name] = partial(lambda name: several(partial(now, data, side, name), kept_blocks()), name)
    costs = {name: [cost.over(IN_A_ROW) for cost in found] for name, found in in_turn(steps, repeats).items()}
    exact = now(data, side, "exact")
    if not np.array_equal(exact, before(data, side)):
        raise SystemExit(f"{height}x{width}: the exact square differs from that of before")
    difference = np.abs(exact.astype(int) - now(data, side, "draft"))
    first = [cost.cpu for cost in costs["before"]]
    return {
        "image": f"{width}x{height}",
        "side": side,
        "milliseconds": {name: milliseconds(values) for name, values in costs.items()},
        "rate": {
            name: spread([one / cost.cpu for one, cost in zip(first, values, strict=True)], 2)
            for name, values in costs.items()
        },
        "draft_levels": {"mean": round(float(difference.mean()), 3), "highest": int(difference.max())},
    }


def added(many: int) -> dict[str, Any]:
    """Images decoded, and seconds, for many new images, and then for one more."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "files"
        root.mkdir()
        data = photograph(450, 600)
        for number in range(many + 1):
            # Different files of equal size: what follows the end of a JPEG image is no part of it.
            (root / f"{number}.jpg").write_bytes(data + number.to_bytes(4, "big"))
        names = [f"{number}.jpg" for number in range(many + 1)]
        all_cost, all_found = clocked(partial(open_cache, names[:-1], root, 112, 3, Path(folder) / "cache"))
        one_cost, one_found = clocked(partial(open_cache, names, root, 112, 3, Path(folder) / "cache"))
        return {
            "images": many,
            "decoded": [all_found.decoded, one_found.decoded],
            "cpu_seconds": [round(all_cost.cpu, 3), round(one_cost.cpu, 3)],
        }


def tables(result: dict[str, Any]) -> str:
    times = {"image": "image", "side": "side", "before, ms": "milliseconds.before.cpu.median"}
    times |= {f"{name}, ms": f"milliseconds.{name}.cpu.median" for name in ("exact", "draft", "proportion")}
    times |= {f"{name}: rate": f"rate.{name}.median" for name in ("exact", "draft", "proportion")}
    times |= {"draft: mean difference": "draft_levels.mean", "draft: highest difference": "draft_levels.highest"}
    more = result["added"]
    sentence = (
        f"{more['images']} new images of 600x450: {more['decoded'][0]} decoded in {more['cpu_seconds'][0]} s of CPU; one "
        f"image added: {more['decoded'][1]} decoded in {more['cpu_seconds'][1]} s."
    )
    return f"{table(times, result['cases'], 2)}\n\n{sentence}"


if __name__ == "__main__":
    run(__file__, measured, tables)
