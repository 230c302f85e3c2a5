r"""Several methods on the same sites: do they differ at all, and who wins where?

Results of the same sites are not independent: a hard site is hard for every method. So sites are blocks of the analysis of
variance, and pairs of methods are compared by their differences (:mod:`grandrounds.evaluation.paired`). Testing every pair
of four methods at 5 % finds a difference among equals in about one study of four; Bonferroni's factor makes up for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FEWEST_BLOCKS = 3


class Blocked(NamedTuple):
    """An analysis of variance with blocks.

    Attributes:
        statistic: :math:`F`; infinite where nothing but the methods differs.
        p_value: of the hypothesis that all methods have the same mean.
        between: degrees of freedom of the methods.
        within: those of the error.
    """

    statistic: float
    p_value: float
    between: int
    within: int


class Win(NamedTuple):
    """How often the first of two methods was better, equal or worse over the same sites."""

    better: int
    equal: int
    worse: int


def blocked_anova(table: NDArray[np.floating]) -> Blocked | None:
    r"""Compare methods on the same sites: what is common to a site cancels.

    .. math:: F = \frac{B \sum_m (\bar x_m - \bar x)^2 / (M - 1)}
        {\sum_{mb} (x_{mb} - \bar x_m - \bar x_b + \bar x)^2 / ((M - 1)(B - 1))}

    With two methods it is the square of the paired t statistic.

    Args:
        table: results, shape ``(methods, sites)``.

    Returns:
        None with fewer than two methods or three sites.

    Raises:
        ValueError: if the table is no matrix or an entry is not finite.

    Example:
        >>> round(blocked_anova(np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])).statistic, 6)
        12.0
    """
    if table.ndim != 2 or not np.isfinite(table).all():
        raise ValueError(f"expected finite results (methods, sites), got shape {table.shape}")
    methods, blocks = table.shape
    if methods < 2 or blocks < FEWEST_BLOCKS:
        return None
    from scipy import stats

    of_method, of_block = table.mean(axis=1, keepdims=True), table.mean(axis=0, keepdims=True)
    free, left = methods - 1, (methods - 1) * (blocks - 1)
    between = float(blocks * ((of_method - table.mean()) ** 2).sum()) / free
    within = float(((table - of_method - of_block + table.mean()) ** 2).sum()) / left
    certain = math.inf if between > 0 else 0.0
    statistic = between / within if within > 0 else certain
    return Blocked(statistic, float(stats.f.sf(statistic, free, left)), free, left)


def bonferroni(p_value: float, comparisons: int) -> float:
    """A p-value that may be judged as if it were the only one; NaN stays NaN.

    Example:
        >>> bonferroni(0.02, 3), bonferroni(0.5, 3)
        (0.06, 1.0)
    """
    return p_value if math.isnan(p_value) else min(1.0, p_value * comparisons)


def wins(results: Mapping[str, Sequence[float]], digits: int = 6) -> dict[tuple[str, str], Win]:
    """Count, for each two methods, at how many sites the first was better.

    Args:
        results: of each method, on the same sites in the same order; higher is better.
        digits: results that agree to so many decimals are equal.

    Raises:
        ValueError: if the numbers of results differ.

    Example:
        >>> wins({"a": [0.5, 0.7, 0.9], "b": [0.4, 0.7, 1.0]})[("a", "b")]
        Win(better=1, equal=1, worse=1)
    """
    found = {}
    for first, second in combinations(results, 2):
        signs = [round(a - b, digits) for a, b in zip(results[first], results[second], strict=True)]
        better, worse = sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs)
        found[first, second] = Win(better, len(signs) - better - worse, worse)
    return found
