"""Which pictures look the same although their pixels differ: copies that were saved again with loss, or resized.

Every picture is reduced to 16 by 16 means of grey. Saved again as JPEG at quality 30, pictures of skin and blood cells
differ from themselves by less than one grey level on average, and noise of 16 by 16 pixels at quality 75 by 8; of 10,015
pictures of HAM10000 29 pairs are as near to each other as is asked here, 28 of them of one lesion. Turned or mirrored copies
are not found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE, MEANS_A_SIDE = 16, 4
ALIKE_UP_TO, ALIKE_FROM = 9.0, 0.975
"""Largest mean difference in grey levels and smallest correlation of two pictures that look the same."""
MEANS_NEAR = 6.0
"""Largest difference of their 4 by 4 means: what is farther apart is not compared in detail."""
FLAT = 4.0
"""Standard deviation in grey levels below which a picture shows too little to be compared."""
MAX_CANDIDATES = 500_000
NUMBERS_AT_A_TIME = 1 << 22
"""Of comparisons, which are held in memory."""


def thumbnails(images: NDArray[np.uint8], rows: Sequence[int]) -> NDArray[np.uint8]:
    """Means of grey of some rows of images of shape ``(n, height, width, channels)``, shape ``(rows, 256)``."""
    from PIL import Image

    found = np.empty((len(rows), SIDE * SIDE), np.uint8)
    for row, image in enumerate(images[number] for number in rows):
        picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).convert("L")
        found[row] = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BOX)).ravel()
    return found


def near_pairs(thumbs: NDArray[np.uint8]) -> NDArray[np.int64] | None:
    """The pairs of rows that look the same, shape ``(pairs, 2)``; None where too many candidates would have to be compared.

    Example:
        >>> one = np.arange(256, dtype=np.uint8)
        >>> near_pairs(np.stack([one, one[::-1], one // 2 * 2])).tolist()
        [[0, 2]]
    """
    rows = np.flatnonzero(thumbs.std(axis=1) >= FLAT)
    shown = thumbs[rows].astype(np.float32)
    step = SIDE // MEANS_A_SIDE
    coarse = shown.reshape(-1, MEANS_A_SIDE, step, MEANS_A_SIDE, step).mean(axis=(2, 4)).reshape(-1, MEANS_A_SIDE**2)
    pairs = _within(coarse, MEANS_NEAR)
    if pairs is None:
        return None
    alike = [_alike(shown[some[:, 0]], shown[some[:, 1]]) for some in _chunks(pairs, SIDE * SIDE)]
    found = np.sort(rows[pairs[np.concatenate([*alike, np.zeros(0, np.bool_)])]], axis=1)
    return found[np.lexsort((found[:, 1], found[:, 0]))].astype(np.int64)


def _within(points: NDArray[np.float32], radius: float) -> NDArray[np.int64] | None:
    """The pairs of rows of which no coordinate differs by more than the radius; None if they are too many.

    Rows are sorted into cells by the two coordinates that tell most, and compared with those of the cells around. A tree
    of SciPy takes quadratic time with 16 coordinates.
    """
    if not len(points):
        return np.zeros((0, 2), np.int64)
    telling = _telling(points)
    cells = np.floor(points[:, telling[:2]] / radius).astype(np.int64)
    width = int(np.ptp(cells[:, 1])) + 3
    codes = (cells[:, 0] - cells[:, 0].min()) * width + cells[:, 1] - cells[:, 1].min() + 1
    order = np.argsort(codes, kind="stable")
    codes, columns = codes[order], np.ascontiguousarray(points[order].T)
    found, number = [np.zeros((0, 2), np.int64)], 0
    for code in np.unique(codes):
        begin, end, right = np.searchsorted(codes, (code, code + 1, code + 2))
        below = np.searchsorted(codes, (code + width - 1, code + width + 2))
        for first, last in ((begin, right), below):
            for some in _chunks(np.arange(begin, end), last - first):
                one, other = np.nonzero(_close(columns[telling[2]], some[:, None], slice(first, last), radius))
                one, other = some[one], other + first
                for column in columns[telling]:
                    kept = _close(column, one, other, radius) & (one < other)
                    one, other = one[kept], other[kept]
                found.append(order[np.stack([one, other], axis=1)])
                number += len(one)
                if number > MAX_CANDIDATES:
                    return None
    return np.concatenate(found)


def _telling(points: NDArray[np.float32]) -> NDArray[np.int64]:
    """The coordinates, those first that vary most where the ones before are known."""
    rest, order = points - points.mean(axis=0), list[int]()
    for _ in range(points.shape[1]):
        spread = (rest**2).mean(axis=0)
        spread[order] = -1
        order.append(int(spread.argmax()))
        chosen = rest[:, order[-1]]
        rest = rest - np.outer(chosen, chosen @ rest / max(float(chosen @ chosen), 1e-6))
    return np.array(order)


def _close(column: NDArray[np.float32], one: Any, other: Any, radius: float) -> NDArray[np.bool_]:
    return np.asarray(np.abs(column[one] - column[other]) <= radius)


def _chunks(rows: NDArray[np.int64], numbers: int) -> Iterator[NDArray[np.int64]]:
    """Parts of rows, each of which is compared with so many numbers, that fit into memory."""
    size = max(NUMBERS_AT_A_TIME // max(int(numbers), 1), 1)
    return (rows[begin : begin + size] for begin in range(0, len(rows), size))


def _alike(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether pairs of pictures look the same, row by row."""
    near = np.abs(one - other).mean(axis=1) <= ALIKE_UP_TO
    first, second = (rows - rows.mean(axis=1, dtype=np.float64, keepdims=True) for rows in (one, other))
    products = (first * second).sum(axis=1) / np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    return np.asarray(near & (products >= ALIKE_FROM))
