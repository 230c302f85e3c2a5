"""Measure the speed of images: decoded, from the cache, as views, and their share of a training step.

Images are drawn and saved as JPEG files of a camera's size, because files of a real collection may be on any disk. All
times are CPU time of one thread. A run takes about a minute.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional as F

from benchmarks.measure import Steps, clocked, in_turn, milliseconds, run, spread, table
from grandrounds.data.images.augmentation import draw_views, view_names
from grandrounds.data.images.cache import open_cache
from grandrounds.data.images.tensors import to_tensor
from grandrounds.federation.memory import keep_freed_memory
from grandrounds.federation.site.training import Adam
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import derive_seed, numpy_generator

CAMERA, BATCH, KEY = (450, 600), 16, derive_seed("views")
VIEWS: dict[str, tuple[str, ...]] = {"none": ("none",), "weak": ("weak",), "weak and strong": ("weak", "strong")}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    keep_freed_memory()
    images, repeats, sizes = (32, 3, (64,)) if options.quick else (192, 15, (64, 224))
    networks = ("compact",) if options.quick else ("compact", "resnet10", "mobilenetv2")
    with tempfile.TemporaryDirectory() as folder:
        draw_files(Path(folder) / "files", images)
        opened = {size: opening(Path(folder), images, size) for size in sizes}
        return {
            "camera": list(CAMERA),
            "images": images,
            "batch": BATCH,
            "opening": [figures for figures, _ in opened.values()],
            "batches": [batches(array, size, repeats) for size, (_, array) in opened.items()],
            "steps": [step_shares(name, opened[64][1], repeats) for name in networks],
        }


def draw_files(folder: Path, count: int) -> None:
    """Photographs of a camera's size: smooth, with noise, as JPEG files."""
    folder.mkdir(parents=True)
    generator = numpy_generator("files")
    for number in range(count):
        smooth = Image.fromarray(generator.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(CAMERA[::-1])
        pixels = np.asarray(smooth, np.int16) + generator.integers(-8, 9, (*CAMERA, 3), dtype=np.int16)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.jpg", quality=90)


def opening(folder: Path, count: int, size: int) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """Open the images twice: they are decoded the first time and found the second."""
    names = [f"{number}.jpg" for number in range(count)]
    work = partial(open_cache, names, folder / "files", size, 3, folder / "cache")
    (first, made), (second, found) = clocked(work), clocked(work)
    if (made.decoded, found.decoded) != (count, 0):
        raise SystemExit(f"decoded {made.decoded} and {found.decoded} images, expected {count} and 0")
    figures = {
        "size": size,
        "decoded_per_second": round(count / first.cpu, 1),
        "milliseconds_to_decode": round(1000 * first.cpu / count, 3),
        "milliseconds_to_find_all": round(1000 * second.cpu, 2),
    }
    return figures, found.images


def batches(images: NDArray[np.uint8], size: int, repeats: int) -> dict[str, Any]:
    rows = np.arange(BATCH) * (len(images) // BATCH)
    batch = np.array(images[rows])
    steps: Steps = {"read": lambda: np.array(images[rows])}
    for view in view_names():
        steps[view] = partial(draw_views, batch, np.arange(BATCH), view, KEY, 0)
    steps["input"] = partial(to_tensor, batch)
    costs = in_turn(steps, repeats)
    per_second = {name: spread([BATCH / max(cost.cpu, 1e-9) for cost in values], 0) for name, values in costs.items()}
    return {"size": size, "images_per_second": per_second}


def step_shares(backbone: str, images: NDArray[np.uint8], repeats: int) -> dict[str, Any]:
    """Reading, drawing and learning of a step, and the shares of the first two; one pass has warmed the file up."""
    network = build_model(ModelSpec(backbone, 7), seed=1).train().to(memory_format=torch.channels_last)
    optimizer = Adam(network.parameters(), fused=True)
    rows, labels = np.arange(BATCH) * (len(images) // BATCH), torch.arange(BATCH) % 7
    batch = np.array(images[rows])

    def draw(views: tuple[str, ...]) -> list[torch.Tensor]:
        return [to_tensor(draw_views(batch, np.arange(BATCH), view, KEY, 0)) for view in views]

    def learn(drawn: list[torch.Tensor]) -> None:
        optimizer.zero_grad()
        torch.stack([F.cross_entropy(network(view), labels) for view in drawn]).sum().backward()
        optimizer.step()

    shares = {}
    for name, views in VIEWS.items():
        steps: Steps = {"read": lambda: np.array(images[rows]), "draw": partial(draw, views)}
        costs = in_turn({**steps, "learn": partial(learn, draw(views))}, repeats)
        turns = list(zip(*costs.values(), strict=True))
        shares[name] = {
            "milliseconds": {part: milliseconds(values) for part, values in costs.items()},
            "share_reading": spread([turn[0].cpu / sum(cost.cpu for cost in turn) for turn in turns]),
            "share_drawing": spread([turn[1].cpu / sum(cost.cpu for cost in turn) for turn in turns]),
        }
    return {"backbone": backbone, "size": int(images.shape[1]), "views": shares}


def tables(result: dict[str, Any]) -> str:
    speeds = [
        {"size": case["size"], "view": name, "speed": round(found["median"])}
        for case in result["batches"]
        for name, found in case["images_per_second"].items()
    ]
    steps = [
        {
            **case,
            "name": name,
            **{part: 100 * found[f"share_{part}"]["median"] for part in ("reading", "drawing")},
            **found,
        }
        for case in result["steps"]
        for name, found in case["views"].items()
    ]
    opened = {"pixels": "size", "ms to decode an image": "milliseconds_to_decode"}
    opened |= {"ms to find all again": "milliseconds_to_find_all"}
    columns = {
        "network": "backbone", "pixels": "size", "views": "name", "ms of learning": "milliseconds.learn.cpu.median",
    }  # fmt: skip
    parts = (
        (opened, result["opening"], 2),
        ({"pixels": "size", "what": "view", "images per second": "speed"}, speeds, 0),
        ({**columns, "% reading": "reading", "% drawing": "drawing"}, steps, 2),
    )
    return "\n\n".join(table(*part) for part in parts)


if __name__ == "__main__":
    run(__file__, measured, tables)
