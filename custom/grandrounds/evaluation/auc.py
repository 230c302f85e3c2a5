r"""Areas under ROC and precision-recall curves for many weightings of the same samples at once, for bootstrap intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.cases import Cases, resampled_weights
from grandrounds.evaluation.estimates import Estimate, interval_of

AREA_RESAMPLES = 200


class Areas(NamedTuple):
    """Areas for each weighting, shape ``(weightings,)``; NaN where a side has no weight.

    Attributes:
        auroc: area under the ROC curve; ties count half.
        average_precision: area under the precision-recall curve, without interpolation.
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

    Example:
        >>> once = np.ones((1, 3))
        >>> weighted_areas(np.array([True, False, False]), np.array([0.5, 0.5, 0.1]), once).auroc
        array([0.75])
    """
    order = np.argsort(scores, kind="stable")
    first = np.flatnonzero(np.r_[True, np.diff(scores[order]) > 0])
    sorted_weights = weights[:, order].astype(np.float64)
    mask = positive[order]
    of_positive = np.add.reduceat(sorted_weights * mask, first, axis=1)
    of_negative = np.add.reduceat(sorted_weights * ~mask, first, axis=1)
    below = np.cumsum(of_negative, axis=1)
    hits, misses = of_positive.sum(axis=1), below[:, -1]
    taken = np.cumsum(of_positive[:, ::-1], axis=1)[:, ::-1]
    called = taken + np.cumsum(of_negative[:, ::-1], axis=1)[:, ::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        auroc = (of_positive * (below - of_negative / 2)).sum(axis=1) / (hits * misses)
        precision = np.where(called > 0, taken / called, 0)
        average = (of_positive * precision).sum(axis=1) / hits
    undefined = (hits == 0) | (misses == 0)
    return Areas(np.where(undefined, np.nan, auroc), np.where(undefined, np.nan, average))


def area_estimates(
    cases: Cases, generator: np.random.Generator, resamples: int = AREA_RESAMPLES
) -> list[dict[str, Estimate]]:
    """AUROC and average precision of each class against the others, with intervals.

    Args:
        cases: with probabilities.
        generator: where the bootstrap samples are drawn from.
        resamples: how many; each takes as long as sorting the samples.

    Returns:
        An entry for each class, of ``auroc`` and ``average_precision``; both rest on the smaller side's cases.

    Raises:
        ValueError: if there are no probabilities.
    """
    if cases.probabilities is None:
        raise ValueError("areas need probabilities, and only the predicted classes are known")
    weights = resampled_weights(cases, generator, resamples)
    once = np.ones((1, len(cases.labels)))
    found = []
    for number, behind in enumerate(np.minimum(cases.positives(), cases.negatives()).tolist()):
        positive, scores = cases.labels == number, cases.probabilities[:, number]
        if not behind:
            found.append(dict.fromkeys(Areas._fields, Estimate(np.nan, np.nan, np.nan, 0)))
            continue
        values, draws = weighted_areas(positive, scores, once), weighted_areas(positive, scores, weights)
        found.append(
            {
                name: Estimate(float(getattr(values, name)[0]), *interval_of(getattr(draws, name)), behind)
                for name in Areas._fields
            }
        )
    return found
