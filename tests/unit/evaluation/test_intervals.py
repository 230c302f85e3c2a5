"""Intervals contain their estimate, agree with statsmodels, and are as wide as the patients behind them require."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from grandrounds.evaluation.intervals import (
    Interval,
    auroc_interval,
    combined,
    correlations,
    effective_size,
    f1_interval,
    wilson,
)
from grandrounds.seeding import numpy_generator


@settings(max_examples=60)
@given(size=st.integers(1, 500), share=st.floats(0, 1))
def test_wilson_is_that_of_statsmodels_and_scipy(size, share):
    hits = round(share * size)
    low, high = (float(end) for end in wilson(hits / size, size))
    assert (low, high) == pytest.approx(proportion_confint(hits, size, method="wilson"), abs=1e-12)
    expected = stats.binomtest(hits, size).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert low <= hits / size <= high


def test_without_an_image_a_proportion_can_be_anything():
    assert wilson(math.nan, 0) == (0, 1)
    assert wilson(0.0, 0) == (0, 1)


def test_the_interval_of_f1_is_that_of_its_proportion():
    # TP 6, FP 2, FN 4: F1 = 12 / 18, J = 6 / 12.
    low, high = f1_interval(0.5, 12)
    ends = proportion_confint(6, 12, method="wilson")
    assert (low, high) == pytest.approx(tuple(2 * end / (1 + end) for end in ends))
    assert low < 12 / 18 < high


@settings(max_examples=60)
@given(
    images=st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=1, max_size=40),
)
def test_patients_are_worth_at_most_their_images(images):
    hits, groups = (np.array(column) for column in zip(*images, strict=True))
    size = effective_size(hits, groups)
    sizes = np.bincount(groups)
    assert len(hits) * len(hits) / (sizes**2).sum() - 1e-9 <= size <= len(hits)
    assert effective_size(hits, np.arange(len(hits))) == pytest.approx(len(hits))


def test_the_design_effect_is_that_of_a_ratio_of_cluster_totals():
    hits = np.array([1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 1, 1], bool)
    groups = np.repeat([0, 1, 2, 3, 4], [3, 2, 2, 2, 3])
    totals = np.array([hits[groups == g].sum() - hits.mean() * (groups == g).sum() for g in range(5)])
    robust = 5 / 4 * (totals**2).sum() / 12**2
    effect = robust / (hits.mean() * (1 - hits.mean()) / 12)
    assert effective_size(hits, groups) == pytest.approx(12 / max(effect, 1))


@settings(max_examples=60)
@given(
    scores=st.lists(st.integers(0, 8), min_size=2, max_size=30),
    positives=st.integers(1, 29),
    patients=st.integers(1, 30),
)
def test_the_interval_of_an_area_contains_it(scores, positives, patients):
    values = np.array(scores, np.float64)
    positive = np.arange(len(values)) < positives
    area, low, high = auroc_interval(positive, values, np.arange(len(values)) % patients)
    if positives >= len(values):
        assert math.isnan(area)
        assert math.isnan(low)
    else:
        pairs = np.subtract.outer(values[positive], values[~positive])
        assert area == pytest.approx((pairs > 0).mean() + (pairs == 0).mean() / 2)
        assert 0 <= low <= area <= high <= 1


def test_a_mean_of_independent_parts_adds_squared_distances():
    parts = Interval(np.array([0.1, 0.5, 0.5]), np.array([0.4, 0.9, 0.9]))
    mean, low, high = combined([0.2, 0.8, 0.6], parts, [2, 1, 1])
    assert mean == pytest.approx(0.45)
    assert mean - low == pytest.approx(math.sqrt((0.5 * 0.1) ** 2 + (0.25 * 0.3) ** 2 + (0.25 * 0.1) ** 2))
    assert high - mean == pytest.approx(math.sqrt((0.5 * 0.2) ** 2 + (0.25 * 0.1) ** 2 + (0.25 * 0.3) ** 2))


def test_parts_that_move_together_give_the_widest_mean():
    parts = Interval(np.array([0.1, 0.5]), np.array([0.4, 0.9]))
    _, low, high = combined([0.2, 0.8], parts, [1, 1], np.ones((2, 2)))
    assert (low, high) == pytest.approx((0.3, 0.65))


def test_correlations_of_draws_and_of_a_constant():
    draws = numpy_generator("draws").normal(size=(50, 2)) @ np.array([[1.0, 0.5], [0.0, 1.0]])
    found = correlations(np.column_stack([draws, np.full(50, 0.25)]))
    assert found[:2, :2] == pytest.approx(np.corrcoef(draws.T))
    assert found[2].tolist() == [0, 0, 1]
