"""Which rows make up each local step.

Federated learning from sites of very different size is fairest when every site takes the same number of steps per
round, whatever its size (FedVC: Hsu et al., "Federated Visual Classification with Real-World Data Distribution", ECCV
2020). FedPerl (Bdair et al., MELBA 2022) keeps this part of FedVC: a local "epoch" is a fixed number of batches, not a
pass over the data.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least


def index_batches(
    rows: NDArray[np.integer], batch_size: int, steps: int, generator: np.random.Generator
) -> Iterator[NDArray[np.integer]]:
    """Draw the batches of a site's local training: shuffled passes over its rows, cut off after ``steps`` batches.

    The last batch of a pass may be small. If only one row is left for it, that row joins the batch before: batch
    normalisation cannot train on a single sample. (FedPerl would train on it alone.)

    Returns:
        An iterator over exactly ``steps`` arrays of rows.

    Raises:
        ValueError: if there are no rows, ``batch_size`` is below one or ``steps`` is negative.
    """
    require_at_least(batch_size, 1, "batch_size")
    require_at_least(steps, 0, "steps")
    if len(rows) == 0:
        raise ValueError("there are no rows to draw batches from")
    return _passes(rows, _boundaries(len(rows), batch_size), steps, generator)


def _boundaries(count: int, batch_size: int) -> list[int]:
    """Where to cut a pass of ``count`` rows."""
    cuts = list(range(batch_size, count, batch_size))
    if cuts and batch_size > 1 and count - cuts[-1] == 1:
        cuts.pop()
    return cuts


def _passes(
    rows: NDArray[np.integer], cuts: list[int], steps: int, generator: np.random.Generator
) -> Iterator[NDArray[np.integer]]:
    while steps > 0:
        batches = np.split(generator.permutation(rows), cuts)[:steps]
        steps -= len(batches)
        yield from batches


def eval_batches(rows: NDArray[np.integer], batch_size: int) -> Iterator[NDArray[np.integer]]:
    """Cut rows into batches in their order, each row once; the last batch may be small.

    Raises:
        ValueError: if ``batch_size`` is below one.
    """
    require_at_least(batch_size, 1, "batch_size")
    return (rows[start : start + batch_size] for start in range(0, len(rows), batch_size))
