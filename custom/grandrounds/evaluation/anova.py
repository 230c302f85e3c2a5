"""Do several methods differ at all, and which of them: one-way analysis of variance, then t-tests with Bonferroni's factor.

The test of Fed-Align-CL's tables (Jiménez-Sánchez et al., 2021), where a value is the mean over hospitals of a run. It takes
runs as independent; where methods share seeds, the paired comparison of :mod:`grandrounds.evaluation.paired` is sharper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

FEWEST_RUNS = 2


class MethodsCompared(NamedTuple):
    """The result of an analysis of variance and its comparisons.

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
    """Compare the runs of two or more methods.

    Args:
        results: by method, a value for each run, two runs at least.

    Returns:
        F and p-values; NaN where no two values differ, which is no evidence of anything.

    Raises:
        ValueError: if there are too few methods or runs, or a value is not finite (the method is named).

    Example:
        >>> found = compare_methods({"a": [0.1, 0.2, 0.3], "b": [0.2, 0.3, 0.4]})
        >>> round(found.statistic, 6), round(found.pairs["a", "b"], 6) == round(found.p_value, 6)
        (1.5, True)
    """
    if len(results) < 2:
        raise ValueError(f"there must be two methods at least to compare, got {len(results)}")
    for name, values in results.items():
        if len(values) < FEWEST_RUNS or not np.isfinite(values).all():
            raise ValueError(f"{name} must have {FEWEST_RUNS} runs at least, with finite values, got {list(values)}")
    names = list(combinations(results, 2))
    if len({float(value) for values in results.values() for value in values}) == 1:
        return MethodsCompared(math.nan, math.nan, dict.fromkeys(names, math.nan))
    from scipy import stats

    statistic, p_value = stats.f_oneway(*results.values())
    pairs = {(a, b): min(1.0, len(names) * float(stats.ttest_ind(results[a], results[b]).pvalue)) for a, b in names}
    return MethodsCompared(float(statistic), float(p_value), pairs)
