"""Scoring is total: a model that overflows gets the worst score instead of an error, which would tell of one image."""

import numpy as np
import pytest

from grandrounds.evaluation.metrics import site_metrics, total_probabilities
from grandrounds.protocol.tasks import task_named

SINGLE, MULTI = task_named("single"), task_named("multi")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_overflow_is_the_worst_answer_of_one_class(value):
    labels = np.array([0, 1, 2])
    probabilities = np.eye(3)
    probabilities[1, 2] = value
    found = total_probabilities(SINGLE, labels, probabilities)
    np.testing.assert_array_equal(found, [[1, 0, 0], [0, 0, 1], [0, 0, 1]])
    scores = site_metrics(SINGLE, labels, found)
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert all(np.isfinite(score) for score in scores.values())
    assert probabilities[1, 1] == 1  # the given array stays as it is


def test_an_overflow_is_the_worst_answer_of_findings():
    labels = np.array([[1, 0], [0, 1], [1, -1]])
    probabilities = np.array([[0.9, 0.1], [np.nan, 0.9], [0.8, 0.3]])
    found = total_probabilities(MULTI, labels, probabilities)
    np.testing.assert_array_equal(found[1], [1, 0])
    assert all(np.isfinite(score) for score in site_metrics(MULTI, labels, found).values())


def test_finite_predictions_are_the_same_array():
    probabilities = np.full((2, 2), 0.5)
    assert total_probabilities(SINGLE, np.array([0, 1]), probabilities) is probabilities
