"""Equally sure predictions have no order among themselves."""

import numpy as np
import pytest

from grandrounds.evaluation.selective import falling_confidence, top_confidence

YES = np.array([True])


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


@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        (np.array([]), np.array([], np.bool_), "no samples"),
        (np.array([0.5, 0.5]), YES, r"one length, got \(2,\) and \(1,\)"),
        (np.array([0.5]), np.array([1]), "must be bool, got int64"),
        (np.array([1.5]), YES, "entry 0 of confidence must be between 0 and 1, got 1.5"),
        (np.array([np.nan]), YES, "between 0 and 1, got nan"),
    ],
)
def test_what_is_no_confidence_is_refused(confidence, correct, message):
    with pytest.raises(ValueError, match=message):
        falling_confidence(confidence, correct)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"got \(2,\) and \(3, 2\)"):
        top_confidence(np.array([0, 1]), np.full((3, 2), 0.5))
