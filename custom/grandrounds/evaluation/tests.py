"""Statistical tests that compare methods: paired t-tests and analysis of variance, with Bonferroni's correction.

Methods are run on the same seeds and sites, so their results are compared in pairs, and sites are blocks of the analysis of
variance: what is common to a site cancels. Where runs are independent (Fed-Align-CL's tables, Jiménez-Sánchez et al., 2021),
:func:`compare_methods` uses the one-way analysis. Testing every pair of four methods at 5 % finds a difference among equals
in about one study of four; Bonferroni's factor corrects for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MIN_PAIRS = 3
MIN_RUNS = 2
MIN_BLOCKS = 3


class PairedDifference(NamedTuple):
    """Mean difference of pairs, first less second, its confidence interval, and the number of pairs.

    The p-value is two-sided, of the hypothesis that the mean difference is zero.
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
        a: results of the first method; entries (seeds, sites, or means over either) must be independent.
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
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    if len(a) != len(b):
        raise ValueError(f"paired results must have one length, got {len(a)} and {len(b)}")
    differences = _finite(a, "a") - _finite(b, "b")
    n = len(differences)
    if n < MIN_PAIRS:
        mean = float(differences.mean()) if n else math.nan
        return PairedDifference(mean, math.nan, math.nan, n, math.nan)
    from scipy import stats

    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(n)
    margin = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * error
    # 0/0 when no pair differs at all, which is no evidence of a difference.
    statistic = abs(mean) / error if error > 0 else math.inf if mean else 0.0
    p_value = float(2 * stats.t.sf(statistic, n - 1))
    return PairedDifference(mean, mean - margin, mean + margin, n, p_value)


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of independent repetitions, for example seeds, with the ends of Student's 95 % interval.

    The ends are NaN for fewer than three values.

    Example:
        >>> mean_interval([0.5, 0.5, 0.5]), mean_interval([0.4, 0.6])[0]
        ((0.5, 0.5, 0.5), 0.5)
    """
    found = paired_difference(values, np.zeros(len(values)).tolist())
    return found.mean, found.low, found.high


def _finite(values: Sequence[float], name: str) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    wrong = np.flatnonzero(~np.isfinite(array))
    if len(wrong):
        raise ValueError(f"entry {wrong[0]} of {name} must be finite, got {array[wrong[0]]}")
    return array


class Anova(NamedTuple):
    """An analysis of variance: F, infinite where only the methods differ, with its degrees of freedom.

    The p-value is of the hypothesis that all methods have the same mean.
    """

    statistic: float
    p_value: float
    between: int
    within: int


def anova(groups: Sequence[Sequence[float] | NDArray[np.floating]], blocks: bool = False) -> Anova:
    r"""One-way analysis of variance, or with blocks: entries at one position are of one site, whose effect cancels.

    .. math:: F = \frac{\sum_m n_m (\bar x_m - \bar x)^2 / (M - 1)}{\sum_{mi} (x_{mi} - \bar x_m)^2 / (N - M)}

    With blocks :math:`x_{mb} - \bar x_b + \bar x` takes the place of :math:`x_{mi}`, and the error has
    :math:`(M - 1)(B - 1)` degrees of freedom; with two methods F is then the square of the paired t statistic.

    Args:
        groups: the results of each method, two methods at least.
        blocks: whether all methods have results of the same sites, in the same order.

    Raises:
        ValueError: if there are too few methods, runs or blocks, or an entry is not finite.

    Example:
        >>> round(anova([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]], blocks=True).statistic, 6)
        12.0
    """
    needed, values = MIN_BLOCKS if blocks else MIN_RUNS, [np.asarray(group, np.float64) for group in groups]
    if len(values) < 2 or any(len(group) < needed or not np.isfinite(group).all() for group in values):
        raise ValueError(f"expected two methods at least, with {needed} finite results each, got {groups}")
    from scipy import stats

    whole = float(np.concatenate(values).mean())
    if blocks:
        of_block = np.stack(values).mean(axis=0)
        values = [group - of_block + whole for group in values]
    # Exact where a method's results are equal.
    means = [float(group[0] + (group - group[0]).mean()) for group in values]
    free = len(values) - 1
    left = free * (len(values[0]) - 1) if blocks else sum(map(len, values)) - len(values)
    between = sum(len(group) * (mean - whole) ** 2 for group, mean in zip(values, means, strict=True)) / free
    within = sum(float(((group - mean) ** 2).sum()) for group, mean in zip(values, means, strict=True)) / left
    certain = math.inf if between > 0 else 0.0
    statistic = between / within if within > 0 else certain
    return Anova(statistic, float(stats.f.sf(statistic, free, left)), free, left)


class MethodsCompared(NamedTuple):
    """The result of a one-way analysis of variance and its comparisons.

    Attributes:
        statistic: F, of the variance between methods over that within; infinite if runs of a method never differ.
        p_value: of the hypothesis that all methods have one mean.
        pairs: by pair of methods, the two-sided p-value of Student's t-test with one variance, times the number of pairs,
            at most one.
    """

    statistic: float
    p_value: float
    pairs: dict[tuple[str, str], float]


def compare_methods(results: Mapping[str, Sequence[float]]) -> MethodsCompared:
    """Compare the runs of two or more methods; NaN where no two values differ, which is no evidence of anything.

    Raises:
        ValueError: if there are fewer than two methods or runs of one, or a value is not finite (the method is named).

    Example:
        >>> found = compare_methods({"a": [0.1, 0.2, 0.3], "b": [0.2, 0.3, 0.4]})
        >>> round(found.statistic, 6), round(found.pairs["a", "b"], 6) == round(found.p_value, 6)
        (1.5, True)
    """
    if len(results) < 2:
        raise ValueError(f"there must be at least two methods to compare, got {len(results)}")
    for name, values in results.items():
        if len(values) < MIN_RUNS or not np.isfinite(values).all():
            raise ValueError(f"{name} must have at least {MIN_RUNS} runs with finite values, got {list(values)}")
    names = list(combinations(results, 2))
    if len({float(value) for values in results.values() for value in values}) == 1:
        return MethodsCompared(math.nan, math.nan, dict.fromkeys(names, math.nan))
    from scipy import stats

    found = anova(list(results.values()))
    pairs = {(a, b): min(1.0, len(names) * float(stats.ttest_ind(results[a], results[b]).pvalue)) for a, b in names}
    return MethodsCompared(found.statistic, found.p_value, pairs)


class Win(NamedTuple):
    """How often the first of two methods was better, equal or worse over the same sites."""

    better: int
    equal: int
    worse: int


def bonferroni(p_value: float, comparisons: int) -> float:
    """A p-value that may be judged as if it were the only one; NaN stays NaN.

    Example:
        >>> bonferroni(0.02, 3), bonferroni(0.5, 3)
        (0.06, 1.0)
    """
    return p_value if math.isnan(p_value) else min(1.0, p_value * comparisons)


def wins(results: Mapping[str, Sequence[float]]) -> dict[tuple[str, str], Win]:
    """Count, for each two methods, at how many sites the first was better; results equal to six decimals are equal.

    The results are of the same sites in the same order (:class:`ValueError` if their numbers differ); higher is better.

    Example:
        >>> wins({"a": [0.5, 0.7, 0.9], "b": [0.4, 0.7, 1.0]})[("a", "b")]
        Win(better=1, equal=1, worse=1)
    """
    found = {}
    for first, second in combinations(results, 2):
        signs = [round(a - b, 6) for a, b in zip(results[first], results[second], strict=True)]
        better, worse = sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs)
        found[first, second] = Win(better, len(signs) - better - worse, worse)
    return found
