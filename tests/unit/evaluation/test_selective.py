"""Risk against coverage, by hand and by brute force."""

import itertools

import numpy as np
import pytest

from grandrounds.evaluation.selective import coverage_at_risk, risk_coverage
from grandrounds.seeding import numpy_generator

CURVE = risk_coverage(np.array([0.7, 0.9, 0.6, 0.8]), np.array([True, True, False, False]))


def test_hand_computed_four_samples():
    assert CURVE.coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert CURVE.risk == pytest.approx([0, 0.5, 1 / 3, 0.5])
    assert CURVE.area == pytest.approx(1 / 3)
    assert CURVE.full_coverage_risk == 0.5


def test_coverage_at_a_risk_is_the_largest_whatever_comes_before():
    assert [coverage_at_risk(CURVE, most) for most in (0, 0.3, 0.34, 0.5)] == [0.25, 0.25, 0.75, 1]
    assert coverage_at_risk(risk_coverage(np.array([0.9, 0.1]), np.array([False, False]))) == 0


def test_the_default_is_one_error_in_ten():
    confidence, correct = np.linspace(1, 0.5, 20), np.ones(20, np.bool_)
    correct[[9, 10]] = False
    assert coverage_at_risk(risk_coverage(confidence, correct)) == 1
    correct[11] = False
    assert coverage_at_risk(risk_coverage(confidence, correct)) == 0.5


def test_equally_sure_samples_count_with_their_expected_risk():
    confidence = np.array([0.9, 0.6, 0.6, 0.6])
    orders = [[True, *order] for order in itertools.permutations([False, True, False])]
    risks = [np.cumsum(~np.array(order)) / np.arange(1, 5) for order in orders]
    for order in orders:
        assert risk_coverage(confidence, np.array(order)).risk == pytest.approx(np.mean(risks, axis=0))


def test_risk_is_that_of_the_surest_for_every_coverage():
    generator = numpy_generator("selective")
    confidence, correct = generator.random(30), generator.random(30) < 0.7
    curve = risk_coverage(confidence, correct)
    for taken in range(1, 31):
        surest = sorted(range(30), key=lambda sample: -confidence[sample])[:taken]
        assert curve.risk[taken - 1] == pytest.approx(sum(not correct[sample] for sample in surest) / taken)


def test_a_risk_that_is_no_fraction_is_refused():
    with pytest.raises(ValueError, match="max_risk must be between 0 and 1, got 10"):
        coverage_at_risk(CURVE, 10)
