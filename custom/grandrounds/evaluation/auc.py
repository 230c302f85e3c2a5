"""Area under the ROC curve and average precision of one class against the others, for any weights of the samples.

There is one computation: the plain area is that of unit weights, a bootstrap sample weighs each sample by how often it was
drawn. In NumPy alone: sites score models with it after every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Areas(NamedTuple):
    """Areas of each weighting under the ROC curve and the precision-recall curve, shape ``(weightings,)``.

    Ties count half in the first, the second is without interpolation; both are NaN where a side has no weight.
    """

    auroc: NDArray[np.float64]
    average_precision: NDArray[np.float64]


def weighted_areas(positive: NDArray[np.bool_], scores: NDArray[np.floating], weights: NDArray[np.floating]) -> Areas:
    r"""Areas for each weighting of the samples.

    With :math:`p_u, q_u` the positive and negative weight at the distinct score :math:`u`:

    .. math:: \mathrm{AUROC} = \frac{\sum_u p_u (\sum_{v < u} q_v + q_u / 2)}{P Q}, \qquad
        \mathrm{AP} = \sum_u \frac{p_u}{P} \frac{\sum_{v \ge u} p_v}{\sum_{v \ge u} p_v + q_v}

    Args:
        positive: which samples are positive, shape ``(n,)``.
        scores: higher is more positive, shape ``(n,)``.
        weights: not negative, shape ``(weightings, n)``.
    """
    if not len(scores):
        return Areas(*np.full((2, len(weights)), np.nan))
    order = np.argsort(scores, kind="stable")
    rising = scores[order]
    starts = np.flatnonzero(np.r_[True, rising[1:] > rising[:-1]])
    sorted_weights = weights[:, order].astype(np.float64)
    mask = positive[order]
    of_positive = np.add.reduceat(sorted_weights * mask, starts, axis=1)
    of_negative = np.add.reduceat(sorted_weights * ~mask, starts, axis=1)
    below = np.cumsum(of_negative, axis=1)
    positives, negatives = of_positive.sum(axis=1), below[:, -1]
    taken = np.cumsum(of_positive[:, ::-1], axis=1)[:, ::-1]
    called = taken + np.cumsum(of_negative[:, ::-1], axis=1)[:, ::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        auroc = (of_positive * (below - of_negative / 2)).sum(axis=1) / (positives * negatives)
        precision = np.where(called > 0, taken / called, 0)
        average = (of_positive * precision).sum(axis=1) / positives
    undefined = (positives == 0) | (negatives == 0)
    return Areas(np.where(undefined, np.nan, auroc), np.where(undefined, np.nan, average))


def auc(positive: NDArray[np.bool_], scores: NDArray[np.floating]) -> float:
    r"""Area under the ROC curve: the share of pairs in the right order; NaN without positive or without negative samples.

    .. math:: \frac{1}{n_+ n_-} \sum_{i \in +} \sum_{j \in -} \big( [s_i > s_j] + \tfrac{1}{2} [s_i = s_j] \big)

    Example:
        >>> auc(np.array([True, False, False]), np.array([0.5, 0.5, 0.1]))
        0.75
    """
    return float(weighted_areas(positive, scores, np.ones((1, len(scores)))).auroc[0])


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
