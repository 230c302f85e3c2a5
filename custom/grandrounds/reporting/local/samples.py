"""Which images of a site its local page shows: some of each class, and those that look wrong."""

from __future__ import annotations

import base64
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.appearance import DONE
from grandrounds.data.site import SiteData
from grandrounds.data.suspicions import SUSPICIONS, SmallCopies, small_copies, suspicions
from grandrounds.seeding import numpy_generator

LOOKED_AT = 2000
"""Images that suspicions are looked for in: they and what is computed from them stay below 100 MB."""
PER_CLASS = 12
PER_SUSPICION = 8
AS_STORED = "shown as stored"
WITHOUT_LABEL = "without a label"


class Tile(NamedTuple):
    """An image of the page: the picture as a ``data:`` address, its name, and why it is there."""

    source: str
    name: str
    note: str = ""


class Shown(NamedTuple):
    """Some images of a kind: what they have in common, how many there are, and those that are shown."""

    title: str
    images: int
    tiles: Sequence[Tile]
    meaning: str = ""


class ClassSample(NamedTuple):
    """Images of a class, by the rules of decoding that were applied."""

    name: str
    images: int
    by_rule: Sequence[Shown]


def readable_rows(data: SiteData) -> NDArray[np.int64]:
    """The rows of the images that can be read, ascending."""
    return np.setdiff1d(np.arange(len(data.names)), data.cache.unreadable).astype(np.int64)


def class_samples(data: SiteData, site: str) -> list[ClassSample]:
    """About ``PER_CLASS`` images of each class, drawn at random from every rule in turn; without a label as well."""
    rows = _rows_by_class(data)
    return [ClassSample(name, len(rows[name]), _by_rule(data, rows[name], site, name)) for name in rows]


def suspicious(data: SiteData, site: str) -> tuple[list[Shown], int]:
    """The suspicions about at most ``LOOKED_AT`` images drawn at random, and how many were looked at."""
    rows = readable_rows(data)
    if len(rows) > LOOKED_AT:
        rows = np.sort(numpy_generator("local page", site).choice(rows, LOOKED_AT, replace=False))
    copies = SmallCopies(
        small_copies(data.images, rows),
        [data.names[row] for row in rows],
        [data.cache.originals[row] for row in rows] if data.cache.originals else (),
        [data.sources[row] for row in rows] if data.sources else (),
    )
    kinds = []
    for kind, suspects in suspicions(copies).items():
        tiles = [_tile(data, rows[row], reason) for row, reason in suspects[:PER_SUSPICION]]
        kinds.append(Shown(kind, len(suspects), tiles, SUSPICIONS[kind][0]))
    return kinds, len(rows)


def tile_of(pixels: NDArray[np.uint8], name: str, note: str = "") -> Tile:
    """An image, shape ``(height, width, channels)``, as a tile of a page."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(stream, "PNG")
    return Tile(f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}", name, note)


def described_rules(rules: Iterable[str]) -> str:
    """What was done to an image."""
    return ", ".join(DONE[rule] for rule in rules) or AS_STORED


def _rows_by_class(data: SiteData) -> Mapping[str, list[int]]:
    """Rows of each class or finding, then those with none and those without a label, as far as there are some."""
    rows: dict[str, list[int]] = {name: [] for name in data.classes}
    rest: dict[str, list[int]] = defaultdict(list)
    known = data.known
    for row in readable_rows(data):
        shown = np.flatnonzero(data.task.class_counts(data.labels[[row]], len(data.classes))) if known[row] else ()
        for number in shown:
            rows[data.classes[number]].append(row)
        if not len(shown):
            rest[f"no {data.task.noun}" if known[row] else WITHOUT_LABEL].append(row)
    return rows | rest


def _by_rule(data: SiteData, rows: Sequence[int], site: str, name: str) -> list[Shown]:
    rules = data.cache.rules or ((),) * len(data.names)
    total, drawn = Counter(rules[row] for row in rows), Counter[tuple[str, ...]]()
    turns = []
    for row in numpy_generator("local page", site, name).permutation(np.array(rows, np.int64)):
        turns.append((drawn[rules[row]], int(row)))
        drawn[rules[row]] += 1
    chosen = sorted(row for _, row in sorted(turns)[:PER_CLASS])
    shown = defaultdict(list)
    for row in chosen:
        shown[rules[row]].append(_tile(data, row))
    return [Shown(described_rules(done), total[done], tiles) for done, tiles in sorted(shown.items())]


def _tile(data: SiteData, row: int, note: str = "") -> Tile:
    return tile_of(data.images[row], data.names[row], note)
