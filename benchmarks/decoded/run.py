"""Digests of the decoded pixels of real files, so that a change of decoding shows which images it changes.

Every image of the data sets at ``$GRANDROUNDS_DATA`` and every test file that pydicom's package contains is decoded at its
own size as a site does. A collection of more than a hundred images has one digest for all. ``--out before.json`` is
written before a change, ``--out after.json`` after it; the page lists what differs, with the rule of ``rules.json`` that
explains it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.measure import run
from benchmarks.tables import markdown_table
from grandrounds.data.images.decoding import Pixels, decode_image
from grandrounds.data.images.readers import open_images
from grandrounds.errors import GrandRoundsError

FOLDER = Path(__file__).parent
COLLECTIONS = (
    "ham10000/ham10000_200x150.zip",
    "pbc/pbc_barcelona_96.zip",
    "mias/mini_mias_512.zip",
    "cifar10/cifar10_jpeg.npz",
    "fashion-mnist/train-images-idx3-ubyte.gz",
    "fashion-mnist/t10k-images-idx3-ubyte.gz",
    "medmnist/breastmnist.npz",
    "dicom/rsna_ich_20.zip",
    "dicom/pydicom_samples.zip",
)
LARGE = 100
QUICK = 20
LIBRARIES = ("pillow", "pydicom", "numpy")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    root, most = Path(os.environ["GRANDROUNDS_DATA"]), QUICK if options.quick else None
    files: dict[str, str] = {}
    collections: dict[str, dict[str, Any]] = {}
    for collection in COLLECTIONS:
        rows = collection_rows(root, collection, most)
        if len(rows) > LARGE:
            collections[collection] = digest_of(rows)
        else:
            files |= rows
    files |= dict(list(packaged_files())[:most])
    return {"libraries": {name: version(name) for name in LIBRARIES}, "collections": collections, "files": files}


def collection_rows(root: Path, collection: str, most: int | None = None) -> dict[str, str]:
    """The entries of a collection's images by name."""
    with open_images(root / collection) as reader:
        return {f"{collection}/{name}": decoded(reader.read, name) for name in reader.names()[:most]}


def decoded(read: Callable[[str], Pixels], name: str) -> str:
    """Mode, height, width and SHA-256 of an image's pixels, or that it is refused."""
    try:
        pixels = read(name)
    except GrandRoundsError as error:
        return f"refused: {type(error).__name__}"
    height, width = pixels.shape[:2]
    return f"{'L' if pixels.ndim == 2 else 'RGB'} {height}x{width} {hashlib.sha256(pixels.tobytes()).hexdigest()}"


def digest_of(rows: dict[str, str]) -> dict[str, Any]:
    lines = "".join(f"{name} {row}\n" for name, row in sorted(rows.items()))
    refused = sum(row.startswith("refused") for row in rows.values())
    return {"images": len(rows), "refused": refused, "sha256": hashlib.sha256(lines.encode()).hexdigest()}


def packaged_files() -> Iterator[tuple[str, str]]:
    """The test files of pydicom's package, sorted; none is downloaded."""
    import pydicom.data

    folder = Path(pydicom.data.__file__).parent / "test_files"
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".py"):
        name = path.relative_to(folder).as_posix()
        yield f"pydicom/{name}", decoded(partial(decode_image, path.read_bytes()), name)


def tables(result: dict[str, Any]) -> str:
    """How many images and files there are, and those that differ from ``before.json``."""
    refused = sum(row.startswith("refused") for row in result["files"].values())
    shown = [[name, one["images"], one["refused"]] for name, one in result["collections"].items()]
    shown.append(["files with a digest each", len(result["files"]), refused])
    return markdown_table(["images", "number", "refused"], shown) + "\n\n" + changes(result)


def changes(result: dict[str, Any]) -> str:
    before, rules = (json.loads((FOLDER / name).read_text()) for name in ("before.json", "rules.json"))
    rows = [
        [name, shortened(before[kind][name]), shortened(found), rules.get(name)]
        for kind in ("collections", "files")
        for name, found in result[kind].items()
        if name in before[kind] and found != before[kind][name]
    ]
    return markdown_table(["changed", "before", "after", "rule"], rows) if rows else "No image has changed."


def shortened(found: Any) -> str:
    """An entry with the first eight digits of its digest."""
    text = found["sha256"] if isinstance(found, dict) else found
    *words, digest = text.split(" ")
    return " ".join([*words, digest[:8] if len(digest) == 64 else digest])


if __name__ == "__main__":
    run(__file__, measured, tables, timed=False)
