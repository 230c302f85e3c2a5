"""Which pictures look the same although their pixels differ: copies that were saved again with loss, or resized.

Every picture is reduced to 16 by 16 means of grey. Saved again as JPEG at quality 30, pictures of skin and blood cells
differ from themselves by less than one grey level on average, and noise of 16 by 16 pixels at quality 75 by 8; of 10,015
pictures of HAM10000 29 pairs are as near to each other as is asked here, 28 of them of one lesion. Turned or mirrored copies
are not found.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    from scipy.spatial import cKDTree  # here, because only a comparison of many pictures needs it

    rows = np.flatnonzero(thumbs.std(axis=1) >= FLAT)
    shown = thumbs[rows].astype(np.float32)
    step = SIDE // MEANS_A_SIDE
    coarse = shown.reshape(-1, MEANS_A_SIDE, step, MEANS_A_SIDE, step).mean(axis=(2, 4)).reshape(len(rows), -1)
    if not len(rows):
        return np.zeros((0, 2), np.int64)
    tree = cKDTree(coarse)
    if tree.count_neighbors(tree, MEANS_NEAR, p=np.inf) > 2 * MAX_CANDIDATES:
        return None
    pairs = tree.query_pairs(MEANS_NEAR, p=np.inf, output_type="ndarray").reshape(-1, 2)
    alike = np.array([_alike(shown[one], shown[other]) for one, other in pairs], np.bool_)
    found = np.sort(rows[pairs[alike]], axis=1)
    return found[np.lexsort((found[:, 1], found[:, 0]))].astype(np.int64)


def _alike(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    return bool(np.abs(one - other).mean() <= ALIKE_UP_TO and np.corrcoef(one, other)[0, 1] >= ALIKE_FROM)
