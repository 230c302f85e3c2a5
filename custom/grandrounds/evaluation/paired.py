"""Is one method better than another, or is it the seed?

Two methods are run on the same seeds and sites, so their results are compared in pairs: what is common to a pair (a
hard site, a lucky split) cancels. Differences in question are about 0.01, so an interval always goes with the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FEWEST_PAIRS = 3


class PairedDifference(NamedTuple):
    """Mean difference of pairs, first less second.

    Attributes:
        mean: mean difference.
        low: lower end of its confidence interval.
        high: upper end.
        n: number of pairs.
        p_value: two-sided, of the hypothesis that the mean difference is zero.
    """

    mean: float
    low: float
    high: float
    n: int
    p_value: float


def paired_difference(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> PairedDifference:
    r"""Compare two methods on the same seeds or sites with Student's t.

    .. math:: \bar d \pm t_{n-1} \, s_d / \sqrt{n}, \qquad d_i = a_i - b_i

    Args:
        a: results of the first method; what one entry is (a seed, a site, a mean over either) is the caller's choice,
            but entries must be independent for the interval to mean anything.
        b: results of the second, in the same order.
        confidence: of the interval, in (0, 1).

    Returns:
        The mean difference with interval and p-value. With fewer than three pairs these are NaN, with none the mean
        too. If all differences are equal the interval is a point.

    Raises:
        ValueError: if the lengths differ, a value is not finite, or the confidence is not in (0, 1).

    Example:
        >>> paired_difference([1.0, 2.0, 3.0], [0.0, 2.0, 4.0]).mean
        0.0
        >>> paired_difference([0.7], [0.6]).low
        nan
    """
    _require_confidence(confidence)
    if len(a) != len(b):
        raise ValueError(f"paired results must have one length, got {len(a)} and {len(b)}")
    differences = _finite(a, "a") - _finite(b, "b")
    n = len(differences)
    if n < FEWEST_PAIRS:
        mean = float(differences.mean()) if n else math.nan
        return PairedDifference(mean, math.nan, math.nan, n, math.nan)
    from scipy import stats

    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(n)
    margin = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * error
    # 0/0 when no pair differs at all, which is no evidence of a difference.
    statistic = abs(mean) / error if error > 0 else math.inf if mean else 0.0
    p_value = float(2 * stats.t.sf(statistic, n - 1))
    return PairedDifference(mean, mean - margin, mean + margin, n, p_value)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean of repetitions, seeds for example, with Student's interval.

    Args:
        values: independent repetitions, at least one.
        confidence: of the interval, in (0, 1).

    Returns:
        Mean, lower and upper end; the ends are NaN for fewer than three values.

    Raises:
        ValueError: if a value is not finite or the confidence is not in (0, 1).

    Example:
        >>> mean_interval([0.5, 0.5, 0.5]), mean_interval([0.4, 0.6])[0]
        ((0.5, 0.5, 0.5), 0.5)
    """
    found = paired_difference(values, np.zeros(len(values)).tolist(), confidence)
    return found.mean, found.low, found.high


def _finite(values: Sequence[float], name: str) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    wrong = np.flatnonzero(~np.isfinite(array))
    if len(wrong):
        raise ValueError(f"entry {wrong[0]} of {name} must be finite, got {array[wrong[0]]}")
    return array


def _require_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
