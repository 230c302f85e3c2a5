"""Adaptive bins by hand, and what no division into bins may change."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from grandrounds.evaluation.confidence import ReliabilityPoint, calibration_errors, reliability_points
from grandrounds.seeding import numpy_generator

CONFIDENCE = np.array([0.95, 0.90, 0.85, 0.80, 0.55, 0.50, 0.45, 0.40])
CORRECT = np.array([1, 1, 1, 0, 1, 0, 0, 1], np.bool_)
SAMPLES = st.lists(st.tuples(st.integers(20, 100), st.booleans()), min_size=1, max_size=120)


def free_bins(confidence, correct, z):
    return reliability_points(confidence, correct, z=z, min_remaining=0, min_gap=0)


def test_few_samples_are_one_bin():
    (point,) = reliability_points(CONFIDENCE, CORRECT)
    assert point == pytest.approx((0.675, 0.625, 8))
    assert point.gap == pytest.approx(0.05)
    assert calibration_errors([point]) == pytest.approx((0.05, 0.05))


def test_a_bin_ends_when_it_has_enough_for_its_width():
    points = free_bins(CONFIDENCE, CORRECT, z=0.3)
    assert [point.n for point in points] == [3, 2, 3]
    assert [point.confidence for point in points] == pytest.approx([0.9, 0.675, 0.45])
    assert [point.accuracy for point in points] == pytest.approx([1, 0.5, 1 / 3])
    assert calibration_errors(points) == pytest.approx((0.125, 0.175))


def test_a_larger_quantile_makes_larger_bins():
    points = free_bins(CONFIDENCE, CORRECT, z=0.4)
    assert [point[:2] for point in points] == [pytest.approx((0.875, 0.75)), pytest.approx((0.475, 0.5))]
    assert calibration_errors(points) == pytest.approx((0.075, 0.125))


def test_bins_of_equal_size_are_scikit_learns_quantile_bins():
    accuracy, confidence = calibration_curve(CORRECT, CONFIDENCE, n_bins=2, strategy="quantile")
    points = free_bins(CONFIDENCE, CORRECT, z=0.4)
    assert [point.accuracy for point in reversed(points)] == pytest.approx(accuracy.tolist())
    assert [point.confidence for point in reversed(points)] == pytest.approx(confidence.tolist())


def test_exactly_enough_is_not_more_than_enough():
    # At 0.5 there are four for a width of one half, and (2 / 0.5)^2 / 4 = 4.
    confidence = np.array([1, 0.9, 0.8, 0.5, 0.25, 0.1])
    assert [point.n for point in free_bins(confidence, CORRECT[:6], z=2)] == [5, 1]


def test_defaults_are_the_authors():
    confidence = numpy_generator("defaults").uniform(0.5, 1, size=20_000)
    correct = confidence > 0.7
    found = reliability_points(confidence, correct)
    authors = {"z": 1.645, "min_remaining": 40, "min_gap": 0.05}
    assert reliability_points(confidence, correct, **authors) == found
    for name, other in {"z": 1.96, "min_remaining": 3000, "min_gap": 0.2}.items():
        assert reliability_points(confidence, correct, **authors | {name: other}) != found


def test_no_bin_is_opened_with_too_few_samples_left():
    # The second bin would begin with five samples left, the third with three.
    assert [point.n for point in reliability_points(CONFIDENCE, CORRECT, 0.3, min_remaining=4, min_gap=0)] == [3, 5]
    assert [point.n for point in reliability_points(CONFIDENCE, CORRECT, 0.3, min_remaining=5, min_gap=0)] == [8]


def test_no_bin_is_opened_near_the_lowest_confidence():
    # The bins end at 0.85 and 0.55; the lowest confidence is 0.40.
    assert [point.n for point in reliability_points(CONFIDENCE, CORRECT, 0.3, min_remaining=0, min_gap=0.2)] == [3, 5]
    assert [point.n for point in reliability_points(CONFIDENCE, CORRECT, 0.3, min_remaining=0, min_gap=0.5)] == [8]


def test_a_last_bin_with_too_few_takes_equally_many_from_each_other_bin():
    confidence = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.30, 0.25])
    # Bins of 3, 3 and 2; the last should have 9, so each other gives int(7 * 2 / 8) = 1.
    assert [point.n for point in free_bins(confidence, CORRECT, z=0.3)] == [2, 2, 4]


def test_no_bin_gives_its_last_sample():
    confidence = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.30, 0.29])
    # The last bin should have 225: each other would give 55.
    assert [point.n for point in free_bins(confidence, CORRECT, z=0.3)] == [1, 1, 6]


def test_a_last_bin_of_one_confidence_is_not_changed():
    confidence = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.3])
    assert [point.n for point in free_bins(confidence, CORRECT, z=0.3)] == [3, 3, 2]


@pytest.mark.parametrize("correct", [np.ones(100, np.bool_), np.arange(100) < 70])
def test_equal_confidences_are_one_bin(correct):
    (point,) = free_bins(np.full(100, 0.7), correct, z=1.645)
    assert point == pytest.approx((0.7, correct.mean(), 100))


def test_confidences_that_differ_by_almost_nothing_are_one_bin():
    assert len(free_bins(np.array([1e-200, 0.0, 2e-200]), np.ones(3, np.bool_), z=1.645)) == 1


@settings(max_examples=60)
@given(samples=SAMPLES, seed=st.integers(0, 99), z=st.sampled_from([0.1, 0.5, 1.645]))
def test_order_does_not_matter_and_every_sample_is_in_one_bin(samples, seed, z):
    confidence = np.array([percent / 100 for percent, _ in samples])
    correct = np.array([right for _, right in samples])
    shuffled = numpy_generator("calibration", seed).permutation(len(samples))
    points = reliability_points(confidence, correct, z, min_remaining=5)
    assert reliability_points(confidence[shuffled], correct[shuffled], z, min_remaining=5) == points
    assert sum(point.n for point in points) == len(samples)
    assert sum(point.n * point.accuracy for point in points) == pytest.approx(correct.sum())
    assert sum(point.n * point.confidence for point in points) == pytest.approx(confidence.sum())
    assert [point.confidence for point in points] == sorted((point.confidence for point in points), reverse=True)


def test_calibrated_predictions_have_a_small_error_and_a_surer_model_has_its_excess():
    generator = numpy_generator("calibrated")
    confidence = generator.uniform(0.5, 0.9, size=20_000)
    correct = generator.random(20_000) < confidence
    assert calibration_errors(reliability_points(confidence, correct))[0] < 0.02
    too_sure = reliability_points(confidence + 0.1, correct)
    assert len(too_sure) > 5
    assert all(point.gap > 0 for point in too_sure)
    assert calibration_errors(too_sure)[0] == pytest.approx(0.1, abs=0.015)


def test_errors_are_weighted_by_all_samples():
    points = [ReliabilityPoint(0.9, 0.5, 1), ReliabilityPoint(0.5, 0.6, 3)]
    assert calibration_errors(points) == pytest.approx((0.175, 0.4))
