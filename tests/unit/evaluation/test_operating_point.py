"""A threshold is chosen on validation images alone, and judged on test images."""

import numpy as np
import pytest

from grandrounds.evaluation.cases import cases_from_confusion, cases_of
from grandrounds.evaluation.operating_point import at_threshold, choose_operating_point
from grandrounds.seeding import numpy_generator


def binary(negative, positive, groups=None):
    scores = np.array([*negative, *positive])
    labels = np.repeat([0, 1], [len(negative), len(positive)]).astype(np.int64)
    return cases_of(labels, np.stack([1 - scores, scores], axis=1), groups)


NEGATIVE = np.linspace(0.0, 0.9, 10)
POSITIVE = np.array([0.15, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95, 0.96, 0.97])


def test_hand_computed_threshold():
    point = choose_operating_point(binary(NEGATIVE, POSITIVE), 1, sensitivity=0.9)
    # Nine of ten positives are at 0.35 or above; of the negatives 0.4 to 0.9 are called as well.
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
    found = at_threshold(binary(NEGATIVE, POSITIVE), 1, 0.5, numpy_generator("point"), 200)
    assert found["sensitivity"].value == 0.7
    assert found["specificity"].value == 0.5
    assert found["precision"].value == pytest.approx(7 / 12)
    assert found["sensitivity"].low < 0.7 < found["sensitivity"].high
    assert found["specificity"].cases == 10


def test_refusals():
    with pytest.raises(ValueError, match="sensitivity must be between 0 and 1, got 90"):
        choose_operating_point(binary(NEGATIVE, POSITIVE), 1, 90)
    with pytest.raises(ValueError, match="threshold must be between 0 and 1"):
        at_threshold(binary(NEGATIVE, POSITIVE), 1, 2, numpy_generator("x"))
    with pytest.raises(ValueError, match="a threshold needs probabilities"):
        at_threshold(cases_from_confusion(np.eye(2, dtype=np.int64)), 1, 0.5, numpy_generator("x"))
