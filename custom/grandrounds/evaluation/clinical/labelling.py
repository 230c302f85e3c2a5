"""Which images of a place are worth a label."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def label_order(probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
    """The order in which images should be labelled: predicted classes in turn, of each the least certain image first.

    An image is certain by its margin, the most probable class's probability minus the next one's (Scheffer, Decomain and
    Wrobel, "Active hidden Markov models for information extraction", IDA 2001). Of equal margins the earlier image is first.

    Args:
        probabilities: shape ``(n, classes)``, of two classes or more.

    Returns:
        All rows, shape ``(n,)``.

    Example:
        >>> label_order(np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]]))
        array([1, 2, 3, 0])
    """
    highest = np.sort(probabilities, axis=1)
    margin, predicted = highest[:, -1] - highest[:, -2], probabilities.argmax(axis=1)
    by_margin = np.lexsort((np.arange(len(margin)), margin))
    turn = np.empty(len(margin), np.int64)
    for name in np.unique(predicted):
        rows = by_margin[predicted[by_margin] == name]
        turn[rows] = np.arange(len(rows))
    return np.lexsort((np.arange(len(margin)), predicted, turn)).astype(np.int64)
