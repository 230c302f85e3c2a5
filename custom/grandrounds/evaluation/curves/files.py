"""Curve counts as the integer array of a fixed shape that travels, and as the file ``curves_MODEL.json``.

Every reader checks them again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from grandrounds.errors import DataError
from grandrounds.evaluation.curves.binned import BINS, MINIMUM, CurveCounts, SiteCurves
from grandrounds.files import write_json

MERGED = -1
"""In the array: the bin was merged with the one below it; a row of nothing else is a class that is left out."""
CURVE_COUNTS = "counts"
"""Name of the array in a message."""


def curves_shape(classes: int) -> tuple[int, int, int]:
    """Shape of the array: a row for each class and one for reliability; positives and negatives; bins."""
    return classes + 1, 2, BINS


def encode_counts(curves: SiteCurves, classes: Sequence[str]) -> NDArray[np.int64]:
    """One site's counts as an array of :func:`curves_shape`; the last row is reliability."""
    array = np.full(curves_shape(len(classes)), MERGED, np.int64)
    for row, counts in zip(array, [*map(curves.classes.get, classes), curves.reliability], strict=True):
        if counts is not None:
            row[:, np.rint(counts.edges[:-1] * BINS).astype(np.int64)] = counts.positives, counts.negatives
    return array


def decode_counts(array: NDArray[np.int64], classes: Sequence[str], minimum: int) -> SiteCurves:
    """Decode counts that another party has made with :func:`encode_counts`, and check them.

    Raises:
        ValueError: if the array has another shape or type, or a count stands for fewer than ``minimum`` patients.
    """
    if array.shape != curves_shape(len(classes)) or array.dtype != np.int64:
        raise ValueError(f"counts must be int64 of shape {curves_shape(len(classes))}, got {array.dtype} {array.shape}")
    decoded = [_decoded(row, minimum) for row in array]
    known = {name: counts for name, counts in zip(classes, decoded, strict=False) if counts is not None}
    return SiteCurves(known, decoded[-1])


def write_curves(path: Path, curves: SiteCurves, classes: Sequence[str]) -> None:
    """Write a site's counts with the vocabulary and the minimum behind a count."""
    counts = encode_counts(curves, classes).tolist()
    write_json(path, {"minimum": MINIMUM, "classes": list(classes), CURVE_COUNTS: counts})


def read_curves(path: Path, classes: Sequence[str]) -> SiteCurves:
    """Read a site's counts.

    Raises:
        DataError: if the file is damaged, of another vocabulary, or a count stands for fewer patients than the file says.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["classes"] != list(classes):
            raise DataError(
                f"{path} is of another vocabulary than its run: expected {', '.join(classes)}, got "
                f"{', '.join(map(str, content['classes']))}"
            )
        array = np.array(content[CURVE_COUNTS])
        return decode_counts(array, classes, int(content["minimum"]))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no file of a site's curves ({error}); ask the site for it again") from error


def _decoded(row: NDArray[np.int64], minimum: int) -> CurveCounts | None:
    starts = row != MERGED
    if (starts[0] != starts[1]).any():
        raise ValueError("both sides of a curve must have the same bins")
    if not starts.any():
        return None
    first = np.flatnonzero(starts[0])
    if first[0] != 0:
        raise ValueError("the bins must begin at 0")
    counts = CurveCounts(np.append(first, BINS) / BINS, *row[:, first].astype(np.float64))
    if any(count != 0 and count < max(minimum, 1) for side in counts[1:] for count in side.tolist()):
        raise ValueError(f"a count must be 0 or at least {max(minimum, 1)}")
    if not (counts.positives.any() and counts.negatives.any()):
        raise ValueError("a curve must have cases on both sides")
    return counts
