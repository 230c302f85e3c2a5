"""Paired differences, detectable differences and Holm's correction agree with SciPy and statsmodels."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from grandrounds.evaluation.comparisons import (
    detectable_difference,
    difference_of_cases,
    holm,
    mean_of_seeds,
    paired_by_seed,
)
from grandrounds.seeding import numpy_generator

A, B = [0.74, 0.71, 0.80, 0.69, 0.77], [0.73, 0.72, 0.77, 0.66, 0.75]


def test_hand_computed_difference():
    # Differences 1, 2, 3: mean 2, deviation 1, t(0.975; 2) = 4.3027, half width 4.3027 / sqrt(3).
    result = paired_by_seed([2, 4, 6], [1, 2, 3])
    assert (result.mean, result.n, result.unit) == (2.0, 3, "seed")
    assert result.high - result.mean == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    assert result.mean - result.low == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    # t = 2 sqrt(3) with two degrees of freedom: p = 1 - t / sqrt(t^2 + 2).
    assert result.p_value == pytest.approx(1 - math.sqrt(12 / 14), rel=1e-9)


def test_agrees_with_scipys_paired_test():
    test = stats.ttest_rel(A, B)
    interval = test.confidence_interval(0.95)
    result = paired_by_seed(A, B)
    assert (result.mean, result.low, result.high, result.p_value) == pytest.approx(
        (np.mean(A) - np.mean(B), interval.low, interval.high, test.pvalue)
    )


@settings(max_examples=40)
@given(values=st.lists(st.tuples(st.integers(-99, 99), st.integers(-99, 99)), min_size=3, max_size=12))
def test_exchanging_the_methods_mirrors_the_interval(values):
    a, b = zip(*values, strict=True)
    forward, backward = paired_by_seed(a, b), paired_by_seed(b, a)
    assert (-backward.mean, -backward.high, -backward.low) == pytest.approx((forward.mean, forward.low, forward.high))
    assert backward.p_value == pytest.approx(forward.p_value)
    assert backward.detectable == pytest.approx(forward.detectable)
    assert forward.low <= forward.mean <= forward.high


@pytest.mark.parametrize(("values", "mean"), [([], math.nan), ([0.1], 0.1), ([0.1, 0.3], 0.2)])
def test_fewer_than_three_seeds_give_no_interval(values, mean):
    result = paired_by_seed(values, [0.0] * len(values))
    assert result.mean == pytest.approx(mean, nan_ok=True)
    assert result.n == len(values)
    assert all(math.isnan(value) for value in (result.low, result.high, result.p_value, result.detectable))


def test_equal_differences_give_a_point_and_certainty_only_if_there_is_a_difference():
    found = paired_by_seed([2, 3, 4], [1, 2, 3])
    assert (found.low, found.high, found.p_value, found.detectable) == (1.0, 1.0, 0.0, 0.0)
    assert paired_by_seed([2, 3, 4], [2, 3, 4]).p_value == 1.0


def test_refusals():
    with pytest.raises(ValueError, match="paired results must have one length, got 2 and 1"):
        paired_by_seed([0.1, 0.2], [0.1])
    with pytest.raises(ValueError, match="entry 1 of b must be finite, got nan"):
        paired_by_seed([0.1, 0.2], [0.1, math.nan])
    with pytest.raises(ValueError, match="n must be at least 2, got 1"):
        detectable_difference(0.1, 1)


@pytest.mark.parametrize(("n", "comparisons"), [(3, 1), (5, 1), (5, 4), (14, 1), (30, 3)])
def test_the_detectable_difference_is_that_of_statsmodels(n, comparisons):
    expected = TTestPower().solve_power(nobs=n, alpha=0.05 / comparisons, power=0.8)
    assert detectable_difference(0.02, n, comparisons) == pytest.approx(0.02 * expected, rel=1e-4)


@pytest.mark.parametrize("number", range(1, 9))
def test_holms_correction_is_that_of_statsmodels(number):
    values = numpy_generator("p-values", number).random(number).round(1).tolist()  # with ties
    found = holm({str(number): value for number, value in enumerate(values)})
    assert list(found.values()) == pytest.approx(multipletests(values, method="holm")[1])


def test_a_comparison_without_a_test_does_not_count():
    found = holm({"a": 0.02, "b": math.nan, "c": 0.03})
    assert (found["a"], found["c"]) == pytest.approx((0.04, 0.04))
    assert math.isnan(found["b"])


def test_two_fixed_models_differ_by_the_normal_error_of_their_cases():
    draws = 0.03 + 0.01 * numpy_generator("draws").standard_normal(20_000)
    found = difference_of_cases(0.025, draws, 300)
    assert (found.low, found.high) == pytest.approx((0.025 - 0.0196, 0.025 + 0.0196), abs=4e-4)
    assert found.p_value == pytest.approx(2 * stats.norm.sf(2.5), abs=2e-3)
    assert found.detectable == pytest.approx(0.01 * (1.95996 + 0.84162), rel=0.02)
    assert (found.n, found.unit) == (300, "case")


def test_equal_models_do_not_differ():
    found = difference_of_cases(0.0, np.zeros(100), 50)
    assert (found.low, found.high, found.p_value, found.detectable) == (0, 0, 1, 0)


def test_the_mean_of_seeds_has_students_interval():
    mean, low, high = mean_of_seeds(A)
    expected = stats.t.interval(0.95, 4, np.mean(A), stats.sem(A))
    assert (mean, low, high) == pytest.approx((np.mean(A), *expected))
