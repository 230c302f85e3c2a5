"""Which rows make up each local step.

Federated learning from sites of very different size is fairest when every site takes the same number of steps per
round, whatever its size (FedVC: Hsu et al., "Federated Visual Classification with Real-World Data Distribution", ECCV
2020). FedPerl (Bdair et al., MELBA 2022) keeps this part of FedVC: a local "epoch" is a fixed number of batches, not a
pass over the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least


def index_batches(
    rows: NDArray[np.integer], batch_size: int, steps: int, generator: np.random.Generator
) -> Iterator[NDArray[np.integer]]:
    """Draw the batches of a site's local training: shuffled passes over its rows, cut off after ``steps`` batches.

    The last batch of a pass may be small. If only one row is left for it, that row joins the batch before: batch
    normalisation cannot train on a single sample. (FedPerl would train on it alone.)

    Args:
        rows: the rows to draw from.
        batch_size: rows in a full batch.
        steps: how many batches.
        generator: shuffles each pass anew.

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


def virtual_client_steps(unlabelled_sizes: Sequence[int], batch_size: int, cap: int = 100) -> int:
    r"""The number of local steps per round that every site takes.

    .. math:: \min\left(\text{cap}, \min_k \left\lceil N_k / B \right\rceil\right)

    Args:
        unlabelled_sizes: :math:`N_k`, how many unlabelled images each site has.
        batch_size: :math:`B`.
        cap: the most steps.

    Returns:
        Steps, at least one.

    Raises:
        ValueError: if no size is given, or a size, the batch size or the cap is below one.

    Example:
        >>> virtual_client_steps([1500, 410], batch_size=16)  # ceil(410 / 16)
        26
    """
    require_at_least(batch_size, 1, "batch_size")
    require_at_least(cap, 1, "cap")
    if len(unlabelled_sizes) == 0:
        raise ValueError("there are no sites to count the steps of")
    smallest = min(unlabelled_sizes)
    require_at_least(smallest, 1, "every site's number of unlabelled images")
    return min(cap, -(-smallest // batch_size))


def eval_batches(rows: NDArray[np.integer], batch_size: int) -> Iterator[NDArray[np.integer]]:
    """Cut rows into batches in their order, each row once; the last batch may be small.

    Args:
        rows: the rows; if there are none there are no batches.
        batch_size: rows in a full batch.

    Raises:
        ValueError: if ``batch_size`` is below one.
    """
    require_at_least(batch_size, 1, "batch_size")
    return (rows[start : start + batch_size] for start in range(0, len(rows), batch_size))
