"""The analysis of variance and its comparisons have published numbers, and those of the definition."""

import math

import numpy as np
import pytest

from grandrounds.evaluation.tests import compare_methods

RESULTS = {
    "A": [0.75, 0.76, 0.74, 0.75, 0.77],
    "B": [0.79, 0.80, 0.78, 0.79, 0.81],
    "C": [0.76, 0.75, 0.77, 0.76, 0.75],
}


def test_three_methods_of_five_runs():
    found = compare_methods(RESULTS)
    assert found.statistic == pytest.approx(22.0606, abs=1e-4)
    assert found.p_value == pytest.approx(9.557e-5, rel=1e-3)
    assert found.pairs["A", "B"] == pytest.approx(1.629e-3, rel=1e-3)
    assert found.pairs["B", "C"] == pytest.approx(1.376e-3, rel=1e-3)
    assert found.pairs["A", "C"] == 1.0


def test_the_statistic_is_the_ratio_of_mean_squares():
    values = np.array(list(RESULTS.values()))
    between = 5 * ((values.mean(axis=1) - values.mean()) ** 2).sum() / 2
    within = ((values - values.mean(axis=1, keepdims=True)) ** 2).sum() / 12
    assert compare_methods(RESULTS).statistic == pytest.approx(between / within)


def test_two_methods_are_a_t_test():
    found = compare_methods({name: RESULTS[name] for name in ("A", "B")})
    assert found.pairs["A", "B"] == pytest.approx(found.p_value)
    assert found.p_value == pytest.approx(5.429e-4, rel=1e-3)


def test_values_that_never_differ_are_no_evidence():
    found = compare_methods({"a": [0.5, 0.5], "b": [0.5, 0.5]})
    assert all(math.isnan(value) for value in (found.statistic, found.p_value, found.pairs["a", "b"]))


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"a": [0.1, 0.2]}, "at least two methods to compare, got 1"),
        ({"a": [0.1, 0.2], "b": [0.1]}, r"b must have at least 2 runs with finite values, got \[0\.1\]"),
        ({"a": [0.1, math.nan], "b": [0.1, 0.2]}, "a must have at least 2 runs"),
    ],
)
def test_too_little_to_compare_is_refused(results, message):
    with pytest.raises(ValueError, match=message):
        compare_methods(results)
