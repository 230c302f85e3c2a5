"""Copies among the 10,015 pictures of HAM10000: how many planted ones are found, how many others, and at what cost.

Of each way in which copies are made, and of each pair of ways, copies of as many pictures are added. A pair of pictures of
one lesion is no false pair. ``$GRANDROUNDS_DATA`` is the folder of the data.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.measure import clocked, run, table
from grandrounds.data.images.readers import open_images
from grandrounds.data.leaks import near_pairs, thumbnails

SIDE, COPIES, SEED = 112, 200, 0
QUICK = 5
CROP = 0.05
"""Largest share of each edge."""
Way = Callable[[Image.Image, np.random.Generator], Image.Image]


def turned(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    return image.transpose(Image.Transpose(int(draw.integers(7))))


def brighter_or_darker(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    gain = draw.uniform(0.8, 1.2)
    return image.point(lambda value: value * gain)


def cropped(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    left, top, right, bottom = draw.uniform(0, CROP, 4) * (*image.size, *image.size)
    return image.crop((round(left), round(top), round(image.width - right), round(image.height - bottom)))


def saved_again(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=75)
    return Image.open(stream)


WAYS: dict[str, Way] = {
    "turned or mirrored": turned,
    "brightness": brighter_or_darker,
    "cropped": cropped,
    "JPEG 75": saved_again,
}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    count = QUICK if options.quick else COPIES
    root = Path(os.environ["GRANDROUNDS_DATA"]) / "ham10000"
    with (root / "ham10000_manifest.csv").open(newline="") as stream:
        lesions = {row["image"]: row["lesion"] for row in csv.DictReader(stream)}
    with open_images(root / "ham10000_200x150.zip") as reader:
        names = reader.names()
        pictures = [Image.fromarray(reader.read(name)) for name in names]
    squares = np.stack([square(picture) for picture in pictures])
    cost, thumbs = clocked(lambda: thumbnails(squares, range(len(squares))))
    search, alone = clocked(lambda: near_pairs(thumbs))
    of = np.array([lesions[Path(name).name] for name in names])
    draw = np.random.default_rng(SEED)
    kinds = [(way,) for way in WAYS] + list(combinations(WAYS, 2))
    rows = draw.permutation(len(names))[: count * len(kinds)].reshape(len(kinds), -1)
    copies = [square(copied(pictures[row], kind, draw)) for kind, some in zip(kinds, rows, strict=True) for row in some]
    together = near_pairs(np.concatenate([thumbs, thumbnails(np.stack(copies), range(len(copies)))]))
    if alone is None or together is None:
        raise SystemExit("too many candidates")
    everyone = np.concatenate([of, of[rows.ravel()]])
    found = {tuple(pair) for pair in together.tolist()}
    known = [(int(row), len(names) + number) in found for number, row in enumerate(rows.ravel())]
    shares = np.reshape(known, rows.shape).mean(1)
    return {
        "pictures": len(names),
        "false_pairs": int((of[alone[:, 0]] != of[alone[:, 1]]).sum()),
        "false_pairs_with_copies": int((everyone[together[:, 0]] != everyone[together[:, 1]]).sum()),
        "pairs_of_one_lesion": int((of[alone[:, 0]] == of[alone[:, 1]]).sum()),
        "cpu_seconds": {"means": round(cost.cpu, 2), "search": round(search.cpu, 2)},
        "found": float(np.mean(known)),
        "ways": [
            {"way": " and ".join(kind), "copies": count, "found": float(share)}
            for kind, share in zip(kinds, shares, strict=True)
        ],
    }


def copied(picture: Image.Image, kind: tuple[str, ...], draw: np.random.Generator) -> Image.Image:
    for way in kind:
        picture = WAYS[way](picture, draw)
    return picture


def square(picture: Image.Image) -> np.ndarray[Any, Any]:
    return np.asarray(picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def tables(result: dict[str, Any]) -> str:
    cost = result["cpu_seconds"]
    text = (
        f"Of the copies {result['found']:.1%} are found. Among the {result['pictures']:,} pictures {result['false_pairs']} "
        f"pairs of different lesions and {result['pairs_of_one_lesion']} of one lesion look the same; with the copies "
        f"{result['false_pairs_with_copies']} pairs of different lesions. CPU: {cost['means']} s for the small copies and "
        f"{cost['search']} s for the search."
    )
    return text + "\n\n" + table({"way": "way", "copies": "copies", "found": "found"}, result["ways"], 3)


if __name__ == "__main__":
    run(__file__, measured, tables, timed=False)
