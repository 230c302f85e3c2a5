"""Risk against coverage, confidence, and thresholds chosen on validation images."""

import itertools

import numpy as np
import pytest

from grandrounds.evaluation.bootstrap import cases_from_confusion, cases_of
from grandrounds.evaluation.confidence import (
    at_threshold,
    choose_operating_point,
    coverage_at_risk,
    falling_confidence,
    risk_coverage,
    top_confidence,
)
from grandrounds.seeding import numpy_generator


def test_confidence_is_the_probability_of_the_prediction_and_ties_go_to_the_lower_class():
    probabilities = np.array([[0.2, 0.7, 0.1], [0.4, 0.4, 0.2], [0.1, 0.1, 0.8]], np.float32)
    confidence, correct = top_confidence(np.array([1, 1, 2]), probabilities)
    np.testing.assert_allclose(confidence, [0.7, 0.4, 0.8], rtol=1e-6)
    assert confidence.dtype == np.float64
    assert correct.tolist() == [True, False, True]


def test_equally_sure_samples_share_their_accuracy():
    confidence = np.array([0.6, 0.9, 0.6, 0.6, 0.6])
    falling, right = falling_confidence(confidence, np.array([True, False, False, True, True]))
    assert falling.tolist() == [0.9, 0.6, 0.6, 0.6, 0.6]
    assert right.tolist() == [0, 0.75, 0.75, 0.75, 0.75]


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
    with pytest.raises(ValueError, match=r"max_risk .*got 10"):
        coverage_at_risk(CURVE, 10)


def binary(negative, positive, groups=None):
    scores = np.array([*negative, *positive])
    labels = np.repeat([0, 1], [len(negative), len(positive)]).astype(np.int64)
    return cases_of(labels, np.stack([1 - scores, scores], axis=1), groups)


NEGATIVE = np.linspace(0.0, 0.9, 10)
POSITIVE = np.array([0.15, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95, 0.96, 0.97])


def test_hand_computed_threshold():
    point = choose_operating_point(binary(NEGATIVE, POSITIVE), 1, sensitivity=0.9)
    # Nine of ten positives are at 0.35 or above; of the negatives 0.4 to 0.9 are called too.
    assert point == (0.35, 0.9, 0.4, 10)
    assert choose_operating_point(binary(NEGATIVE, POSITIVE), 1, sensitivity=1.0).threshold == 0.15


@pytest.mark.parametrize("target", [0.0, 0.33, 0.5, 0.9, 1.0])
def test_no_higher_threshold_finds_as_many(target):
    validation = binary(NEGATIVE, POSITIVE)
    point = choose_operating_point(validation, 1, target)
    assert (point.threshold <= POSITIVE).mean() >= target
    higher = POSITIVE[point.threshold < POSITIVE]
    assert not len(higher) or (higher.min() <= POSITIVE).mean() < target or target == 0


def test_too_few_validation_cases_give_no_threshold():
    assert choose_operating_point(binary(NEGATIVE, POSITIVE[:9]), 1) is None
    patients = [f"p{number // 2}" for number in range(20)]
    assert choose_operating_point(binary(NEGATIVE, POSITIVE, patients), 1) is None  # five patients on each side
    assert choose_operating_point(cases_from_confusion(np.full((2, 2), 10)), 1) is None


def test_test_images_are_judged_at_the_threshold_that_they_did_not_choose():
    found = at_threshold(binary(NEGATIVE, POSITIVE), 1, 0.5)
    assert found["sensitivity"].value == 0.7
    assert found["specificity"].value == 0.5
    assert found["precision"].value == pytest.approx(7 / 12)
    assert found["sensitivity"].low < 0.7 < found["sensitivity"].high
    assert found["specificity"].cases == 10


def test_refusals():
    with pytest.raises(ValueError, match=r"sensitivity .*got 90"):
        choose_operating_point(binary(NEGATIVE, POSITIVE), 1, 90)
    with pytest.raises(ValueError, match="threshold must be between 0 and 1"):
        at_threshold(binary(NEGATIVE, POSITIVE), 1, 2)
    with pytest.raises(ValueError, match="a threshold needs probabilities"):
        at_threshold(cases_from_confusion(np.eye(2, dtype=np.int64)), 1, 0.5)
