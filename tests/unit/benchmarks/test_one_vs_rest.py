"""Each class against all others: three samples by hand, and scikit-learn for the rest."""

import numpy as np
import pytest
import sklearn.metrics

from benchmarks.fedirm_ham10000.one_vs_rest import (
    OneVsRest,
    choose_threshold,
    macro,
    one_vs_rest,
)
from grandrounds.seeding import numpy_generator

LABELS = np.array([0, 2, 2])
SCORES = np.array([[0.5, 0.4, 0.1], [0.2, 0.45, 0.35], [0.1, 0.2, 0.7]])


def drawn(samples, classes):
    generator = numpy_generator("one against the rest")
    # One digit makes ties.
    scores = generator.dirichlet(np.ones(classes), size=samples).round(1)
    return generator.integers(0, classes, samples), scores


def test_three_samples_at_the_threshold_of_the_code():
    scores = one_vs_rest(LABELS, SCORES, threshold=0.4)
    columns = np.array(scores)[:, 1:].T
    np.testing.assert_allclose(columns[0], [1, np.nan, 0.5])
    np.testing.assert_allclose(columns[1], [1, 1 / 3, 1])
    np.testing.assert_allclose(columns[2], [1, 1 / 3, 2 / 3])
    np.testing.assert_allclose(columns[3], [1, 0, 2 / 3])
    np.testing.assert_allclose(macro(scores)[1:], [0.75, 0.7778, 0.6667, 0.5556], atol=1e-4)


@pytest.mark.parametrize("threshold", [0.2, 0.5])
def test_every_score_is_scikit_learns(threshold):
    labels, scores = drawn(60, 4)
    for number, found in enumerate(one_vs_rest(labels, scores, threshold)):
        true = labels == number
        called = scores[:, number] >= threshold
        expected = OneVsRest(
            auc=sklearn.metrics.roc_auc_score(true, scores[:, number]),
            sensitivity=sklearn.metrics.recall_score(true, called),
            specificity=sklearn.metrics.recall_score(~true, ~called),
            accuracy=sklearn.metrics.accuracy_score(true, called),
            f1=sklearn.metrics.f1_score(true, called, zero_division=0),
        )
        assert found == pytest.approx(expected)


def test_the_mean_is_undefined_where_no_class_has_an_area():
    only = one_vs_rest(np.array([1, 1]), np.full((2, 2), 0.5), 0.4)
    assert np.isnan(macro(only).auc)


def test_the_threshold_with_the_best_mean_f1_is_chosen_and_the_lowest_of_equal_ones():
    labels, scores = np.array([0, 0, 1, 1]), np.array([[0.8, 0.2], [0.7, 0.3], [0.35, 0.65], [0.1, 0.9]])
    # Between 0.35 and 0.65 both classes are separated.
    assert choose_threshold(labels, scores) == 0.36
    assert macro(one_vs_rest(labels, scores, 0.36)).f1 == 1
