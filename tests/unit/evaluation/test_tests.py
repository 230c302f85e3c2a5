"""Paired differences, analyses of variance, Bonferroni's factor and wins agree with SciPy and published numbers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grandrounds.evaluation.tests import Win, anova, bonferroni, compare_methods, paired_difference, wins
from grandrounds.seeding import numpy_generator

A, B = [0.74, 0.71, 0.80, 0.69, 0.77], [0.73, 0.72, 0.77, 0.66, 0.75]


def test_hand_computed_difference():
    # Differences 1, 2, 3: mean 2, deviation 1, t(0.975; 2) = 4.3027, half width 4.3027 / sqrt(3).
    result = paired_difference([2, 4, 6], [1, 2, 3])
    assert (result.mean, result.n) == (2.0, 3)
    assert result.high - result.mean == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    assert result.mean - result.low == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    # t = 2 sqrt(3) with two degrees of freedom: p = 1 - t / sqrt(t^2 + 2).
    assert result.p_value == pytest.approx(1 - math.sqrt(12 / 14), rel=1e-9)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_agrees_with_scipys_paired_test(confidence):
    test = stats.ttest_rel(A, B)
    interval = test.confidence_interval(confidence)
    result = paired_difference(A, B, confidence)
    assert result == pytest.approx((np.mean(A) - np.mean(B), interval.low, interval.high, 5, test.pvalue))


@settings(max_examples=40)
@given(values=st.lists(st.tuples(st.integers(-99, 99), st.integers(-99, 99)), min_size=3, max_size=12))
def test_exchanging_the_methods_mirrors_the_interval(values):
    a, b = zip(*values, strict=True)
    forward, backward = paired_difference(a, b), paired_difference(b, a)
    assert (-backward.mean, -backward.high, -backward.low) == pytest.approx(forward[:3])
    assert backward.p_value == pytest.approx(forward.p_value)
    assert 0 <= forward.p_value <= 1
    assert forward.low <= forward.mean <= forward.high


@pytest.mark.parametrize(("values", "mean"), [([], math.nan), ([0.1], 0.1), ([0.1, 0.3], 0.2)])
def test_fewer_than_three_pairs_give_no_interval(values, mean):
    result = paired_difference(values, [0.0] * len(values))
    assert result.mean == pytest.approx(mean, nan_ok=True)
    assert result.n == len(values)
    assert all(math.isnan(value) for value in (result.low, result.high, result.p_value))


def test_equal_differences_give_a_point_and_certainty_only_if_there_is_a_difference():
    assert paired_difference([2, 3, 4], [1, 2, 3]) == (1.0, 1.0, 1.0, 3, 0.0)
    assert paired_difference([2, 3, 4], [2, 3, 4]) == (0.0, 0.0, 0.0, 3, 1.0)


@pytest.mark.parametrize(
    ("a", "b", "confidence", "message"),
    [
        ([1, 2, 3], [1, 2], 0.95, "paired results must have one length, got 3 and 2"),
        ([1, 2, math.nan], [1, 2, 3], 0.95, "entry 2 of a must be finite, got nan"),
        ([1, 2, 3], [math.inf, 2, 3], 0.95, "entry 0 of b must be finite, got inf"),
        ([1, 2, 3], [1, 2, 3], 95, "confidence must be between 0 and 1, got 95"),
    ],
)
def test_refuses_what_are_no_pairs(a, b, confidence, message):
    with pytest.raises(ValueError, match=message):
        paired_difference(a, b, confidence)


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


def test_hand_computed_table():
    # Means of methods 2 and 4, of sites 1.5, 3, 4.5; residuals +-0.5, 0, -+0.5: F = (6 / 1) / (1 / 2).
    found = anova(np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]), blocks=True)
    assert found[0] == pytest.approx(12)
    assert found[2:] == (1, 2)


def test_with_two_methods_it_is_the_paired_t_test():
    table = numpy_generator("blocks").random((2, 9))
    test = stats.ttest_rel(*table)
    found = anova(table, blocks=True)
    assert found.statistic == pytest.approx(test.statistic**2)
    assert found.p_value == pytest.approx(test.pvalue)


def test_what_is_common_to_a_site_cancels():
    table = numpy_generator("cancels").random((4, 6))
    hard = np.array([0, 5, -3, 1, 2, 9])
    assert anova(table + hard, blocks=True).statistic == pytest.approx(anova(table, blocks=True).statistic)


def test_limits():
    assert anova(np.ones((3, 4)), blocks=True) == (0.0, 1.0, 2, 6)
    apart = anova(np.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]), blocks=True)
    assert (apart.statistic, apart.p_value) == (math.inf, 0.0)
    for table in (np.ones((1, 5)), np.ones((3, 2))):
        with pytest.raises(ValueError, match="two methods at least, with 3 finite results"):
            anova(table, blocks=True)
    with pytest.raises(ValueError, match="with 3 finite results each"):
        anova(np.array([[1.0, np.nan, 2.0], [1, 2, 3]]), blocks=True)


def test_bonferroni_is_at_most_one_and_keeps_what_is_unknown():
    assert bonferroni(5.429e-4, 3) == pytest.approx(1.629e-3, rel=1e-3)
    assert bonferroni(0.5447, 3) == 1
    assert math.isnan(bonferroni(math.nan, 3))


def test_wins_of_every_pair():
    found = wins({"a": [0.5, 0.7, 0.9], "b": [0.4, 0.7 + 1e-9, 1.0], "c": [0.1, 0.1, 0.1]})
    assert found == {("a", "b"): Win(1, 1, 1), ("a", "c"): Win(3, 0, 0), ("b", "c"): Win(3, 0, 0)}
    with pytest.raises(ValueError, match="zip"):
        wins({"a": [1.0], "b": [1.0, 2.0]})
