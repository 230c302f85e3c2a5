r"""Comparisons of two methods: paired by seed, or of two fixed models on the same test cases.

A run's seed decides initial weights, order of batches and sites of each round, so a method's result is a random number of
which every seed gives one. Sites of one run share a model: their scores are no independent results of the method. With fewer
than ``MIN_SEEDS`` seeds only two fixed models can be compared, over their test cases, which does not cover other seeds.

A comparison states the smallest difference that it would have detected with a probability of ``POWER``, so that "no
difference was found" is not read as "there is none". Several comparisons with one reference are corrected by Holm's method
(Scandinavian Journal of Statistics 6, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least
from grandrounds.evaluation.intervals import CONFIDENCE

MIN_SEEDS = 3
POWER = 0.8
Unit = Literal["seed", "case"]


@dataclass(frozen=True)
class Difference:
    """A method less another.

    Attributes:
        mean: difference of the scores.
        low: lower end of the 95 % interval.
        high: upper end.
        p_value: two-sided, of the hypothesis that the difference is zero.
        detectable: the smallest true difference that would have been found with a probability of ``POWER``.
        n: number of units.
        unit: what is random: ``seed``, or ``case`` for two fixed models. Where there is no interval, low, high, p_value and
            detectable are NaN.
    """

    mean: float
    low: float
    high: float
    p_value: float
    detectable: float
    n: int
    unit: Unit


def paired_by_seed(a: Sequence[float], b: Sequence[float], comparisons: int = 1) -> Difference:
    r"""Compare two methods on the same seeds with Student's t.

    .. math:: \bar d \pm t_{n-1} \, s_d / \sqrt{n}, \qquad d_i = a_i - b_i

    Args:
        a: results of the first method, one for each seed.
        b: results of the second, in the same order.
        comparisons: how many are made together; the detectable difference is at a level of 0.05 divided by it.

    Returns:
        The difference; with fewer than ``MIN_SEEDS`` seeds without an interval. If all differences are equal the interval is
        a point.

    Raises:
        ValueError: if the lengths differ or a value is not finite.

    Example:
        >>> paired_by_seed([1.0, 2.0, 3.0], [0.0, 2.0, 4.0]).mean
        0.0
        >>> paired_by_seed([0.7], [0.6]).low
        nan
    """
    if len(a) != len(b):
        raise ValueError(f"paired results must have one length, got {len(a)} and {len(b)}")
    differences = _finite(a, "a") - _finite(b, "b")
    n = len(differences)
    mean = float(differences.mean()) if n else math.nan
    if n < MIN_SEEDS:
        return Difference(mean, math.nan, math.nan, math.nan, math.nan, n, "seed")
    from scipy import special

    spread = float(differences.std(ddof=1))
    error = spread / math.sqrt(n)
    margin = float(special.stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * error
    # 0/0 when no pair differs at all, which is no evidence of a difference.
    statistic = abs(mean) / error if error > 0 else math.inf if mean else 0.0
    p_value = float(2 * special.stdtr(n - 1, -statistic))
    return Difference(
        mean, mean - margin, mean + margin, p_value, detectable_difference(spread, n, comparisons), n, "seed"
    )


def detectable_difference(spread: float, n: int, comparisons: int = 1) -> float:
    r"""The smallest mean of n paired differences that Student's test finds with a probability of ``POWER``.

    It solves :math:`P(|T_{n-1}(\delta \sqrt n / s)| > t_{n-1,\,1-\alpha/2}) = 0.8` with the non-central t distribution and
    :math:`\alpha = 0.05` over the number of comparisons.

    Args:
        spread: standard deviation of the differences; not negative.
        n: their number; at least 2.
        comparisons: how many are made together.

    Example:
        >>> round(detectable_difference(0.0144, 3), 3)
        0.047
    """
    require_at_least(n, 2, "n")
    require_at_least(comparisons, 1, "comparisons")
    from scipy import special  # optimize would take a third of a second to import

    critical = float(special.stdtrit(n - 1, 1 - (1 - CONFIDENCE) / comparisons / 2))

    def lacking(effect: float) -> float:
        shift = effect * math.sqrt(n)
        # SciPy's lower tail is NaN where it is negligible.
        lower = np.nan_to_num(special.nctdtr(n - 1, shift, -critical))
        return float(1 - special.nctdtr(n - 1, shift, critical) + lower) - POWER

    low, high = 0.0, 1.0
    while lacking(high) < 0:
        low, high = high, 2 * high
    for _ in range(60):  # to the last digit
        middle = (low + high) / 2
        low, high = (middle, high) if lacking(middle) < 0 else (low, middle)
    return spread * high


def difference_of_cases(value: float, draws: NDArray[np.floating], cases: int, comparisons: int = 1) -> Difference:
    """Compare two fixed models from bootstrap draws of the difference of their scores on the same test cases.

    Args:
        value: the difference on the test cases.
        draws: on bootstrap samples of the cases, shape ``(resamples,)``.
        cases: how many there are.
        comparisons: as in :func:`paired_by_seed`.

    Returns:
        The difference; its interval contains the value, and the detectable difference assumes a normal distribution.

    Example:
        >>> found = difference_of_cases(0.1, np.array([0.0, 0.1, 0.2]), 50)
        >>> found.mean, round(found.low, 3), round(found.p_value, 2)
        (0.1, 0.005, 0.75)
    """
    centred = np.asarray(draws, np.float64) - float(np.mean(draws))
    low, high = np.quantile(centred, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    as_far = int((np.abs(centred) >= abs(value) - 1e-12).sum())
    quantile = sum(map(NormalDist().inv_cdf, (1 - (1 - CONFIDENCE) / comparisons / 2, POWER)))
    return Difference(
        value,
        value + float(low),
        value + float(high),
        (as_far + 1) / (len(centred) + 1),
        quantile * float(centred.std()),
        cases,
        "case",
    )


def mean_of_seeds(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean over seeds with the ends of Student's 95 % interval; NaN for fewer than ``MIN_SEEDS``.

    Example:
        >>> mean_of_seeds([0.5, 0.5, 0.5]), mean_of_seeds([0.4, 0.6])[0]
        ((0.5, 0.5, 0.5), 0.5)
    """
    difference = paired_by_seed(values, np.zeros(len(values)).tolist())
    return difference.mean, difference.low, difference.high


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    r"""Holm's correction: p-values that may each be judged at 5 %, by name; NaN is no test and stays NaN.

    .. math:: \tilde p_{(i)} = \max_{j \le i} \min\big(1, (m - j + 1) \, p_{(j)}\big)

    Example:
        >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
        {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    rising = sorted((name for name, p in p_values.items() if not math.isnan(p)), key=p_values.__getitem__)
    adjusted, largest = dict(p_values), 0.0
    for rank, name in enumerate(rising):
        largest = max(largest, min(1.0, (len(rising) - rank) * p_values[name]))
        adjusted[name] = largest
    return adjusted


def _finite(values: Sequence[float], name: str) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    wrong = np.flatnonzero(~np.isfinite(array))
    if len(wrong):
        raise ValueError(f"entry {wrong[0]} of {name} must be finite, got {array[wrong[0]]}")
    return array
