"""Area under the ROC curve and average precision of one class against the others.

There is one computation of the area: the plain one is that of unit weights, a bootstrap sample weighs each sample by how
often it was drawn. In NumPy alone: sites score models with it after every round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def weighted_auroc(
    positive: NDArray[np.bool_], scores: NDArray[np.floating], weights: NDArray[np.floating]
) -> NDArray[np.float64]:
    r"""Area under the ROC curve for each weighting of the samples; ties count half, NaN where a side has no weight.

    With :math:`w` the weights and :math:`Q(s)` that of the negative samples below the score :math:`s`, half of those at it:

    .. math:: \mathrm{AUROC} = \frac{\sum_{i \in +} w_i \, Q(s_i)}{\sum_{i \in +} w_i \, \sum_{j \in -} w_j}

    Args:
        positive: which samples are positive, shape ``(n,)``.
        scores: higher is more positive, shape ``(n,)``.
        weights: not negative, shape ``(n, weightings)``.

    Returns:
        Shape ``(weightings,)``.
    """
    above, below = np.flatnonzero(positive), np.flatnonzero(~positive)
    areas = np.full(weights.shape[1], np.nan)
    if not len(above) or not len(below):
        return areas
    below = below[np.argsort(scores[below], kind="stable")]
    first, last = (np.searchsorted(scores[below], scores[above], side) for side in ("left", "right"))
    # Only between the places of positive samples are sums needed, one for each place.
    places = np.unique(np.concatenate([[0], first, last]))
    places = places[places < len(below)]
    between = np.add.reduceat(weights[below], places, axis=0, dtype=np.float64)
    reached = np.concatenate([np.zeros((1, len(areas))), np.cumsum(between, axis=0)])
    of_positive = weights[above].astype(np.float64)
    pairs = of_positive * (reached[np.searchsorted(places, first)] + reached[np.searchsorted(places, last)])
    every = of_positive.sum(axis=0) * reached[-1]
    np.divide(pairs.sum(axis=0) / 2, every, out=areas, where=every > 0)
    return areas


def average_precision(positive: NDArray[np.bool_], scores: NDArray[np.floating]) -> float:
    """Mean over the positive samples of the precision at their score, without interpolation.

    NaN without positive or without negative samples.
    """
    ours, others = np.sort(scores[positive]), np.sort(scores[~positive])
    if not len(ours) or not len(others):
        return float("nan")
    taken, false = (len(side) - np.searchsorted(side, ours, "left") for side in (ours, others))
    return float(np.mean(taken / (taken + false)))


def auc(positive: NDArray[np.bool_], scores: NDArray[np.floating]) -> float:
    r"""Area under the ROC curve: the share of pairs in the right order; NaN without positive or without negative samples.

    .. math:: \frac{1}{n_+ n_-} \sum_{i \in +} \sum_{j \in -} \big( [s_i > s_j] + \tfrac{1}{2} [s_i = s_j] \big)

    Example:
        >>> auc(np.array([True, False, False]), np.array([0.5, 0.5, 0.1]))
        0.75
    """
    return float(weighted_auroc(positive, scores, np.ones((len(scores), 1)))[0])


def macro_auc(
    labels: NDArray[np.integer], probabilities: NDArray[np.floating], scored: Sequence[int] | None = None
) -> float:
    """Mean area of the ``scored`` classes (all by default) with positive and negative samples, each against all others.

    NaN without such a class.
    """
    chosen = range(probabilities.shape[1]) if scored is None else scored
    areas = [auc(labels == number, probabilities[:, number]) for number in chosen]
    known = [area for area in areas if not np.isnan(area)]
    return float(np.mean(known)) if known else float("nan")
