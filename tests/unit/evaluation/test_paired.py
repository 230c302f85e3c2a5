"""Intervals agree with SciPy, cover as often as they say, and are not given where there is too little."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grandrounds.evaluation.tests import paired_difference

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
