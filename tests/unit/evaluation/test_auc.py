"""Areas agree with scikit-learn for every weighting, ties included."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from grandrounds.evaluation.auc import auc, average_precision, macro_auc, weighted_auroc
from grandrounds.evaluation.bootstrap import cases_from_confusion, cases_of
from grandrounds.evaluation.estimates import auc_estimates
from grandrounds.seeding import numpy_generator


def test_areas_are_scikit_learns_with_ties_and_zero_weights():
    generator = numpy_generator("areas")
    positive = generator.random(40) < 0.4
    scores = generator.integers(0, 8, 40) / 8  # many ties
    weights = generator.integers(0, 4, (20, 40)).astype(float)
    found = weighted_auroc(positive, scores, weights.T)
    for row in range(20):
        repeated = np.repeat(np.arange(40), weights[row].astype(int))
        assert found[row] == pytest.approx(roc_auc_score(positive[repeated], scores[repeated]))
        precision = average_precision(positive[repeated], scores[repeated])
        assert precision == pytest.approx(average_precision_score(positive[repeated], scores[repeated]))


def test_one_side_without_weight_has_no_area():
    found = weighted_auroc(np.array([True, False]), np.array([0.2, 0.7]), np.array([[1.0, 0.0], [0.0, 1.0], [1, 1]]).T)
    assert np.isnan(found[:2]).all()
    assert found[2] == 0


@pytest.mark.parametrize("positive", [[True, True], [False, False], []])
def test_without_both_sides_there_is_neither_area_nor_precision(positive):
    sides, scores = np.array(positive, np.bool_), np.arange(len(positive), dtype=float)
    assert np.isnan([auc(sides, scores), average_precision(sides, scores)]).all()


def test_estimates_rest_on_the_rarer_side_and_contain_the_value():
    generator = numpy_generator("estimates")
    labels = np.repeat([0, 1], [60, 15])
    sure = np.clip(0.3 + 0.3 * labels + 0.2 * generator.standard_normal(75), 0, 1)
    cases = cases_of(labels.astype(np.int64), np.stack([1 - sure, sure], axis=1))
    first, second = auc_estimates(cases)
    assert second["auroc"].cases == 15
    assert second["auroc"].value == pytest.approx(roc_auc_score(labels, sure))
    assert second["auroc"].low < second["auroc"].value < second["auroc"].high
    assert first["auroc"].value == pytest.approx(second["auroc"].value)
    assert first["average_precision"].value > second["average_precision"].value


def test_a_class_that_is_nowhere_has_no_area():
    labels = np.array([0, 0, 1, 1], np.int64)
    found = auc_estimates(cases_of(labels, np.full((4, 3), 1 / 3)))
    assert np.isnan(found[2]["auroc"].value)
    assert found[2]["auroc"].cases == 0
    assert found[0]["auroc"].value == 0.5


def test_counts_alone_have_no_areas():
    with pytest.raises(ValueError, match="an area needs probabilities"):
        auc_estimates(cases_from_confusion(np.eye(2, dtype=np.int64)))


def test_the_plain_area_counts_ties_half():
    assert auc(np.array([True, False, True, False]), np.array([0.9, 0.9, 0.4, 0.1])) == 0.625


def test_the_macro_area_is_the_mean_over_the_classes_with_both_sides():
    generator = numpy_generator("macro")
    labels, scores = generator.integers(0, 3, 60), generator.dirichlet(np.ones(4), size=60).round(1)
    areas = [roc_auc_score(labels == number, scores[:, number]) for number in range(3)]
    assert macro_auc(labels, scores) == pytest.approx(np.mean(areas))
    assert np.isnan(macro_auc(np.array([1, 1]), np.full((2, 2), 0.5)))
