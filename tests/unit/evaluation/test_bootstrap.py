"""Cases, not images, are counted and drawn, and every bootstrap sample has the same classes."""

import math

import numpy as np
import pytest
from sklearn import metrics

from grandrounds.evaluation.bootstrap import (
    cases_from_confusion,
    cases_of,
    joined,
    resampled_margins,
    resampled_weights,
)
from grandrounds.evaluation.confusion import confusion_class_scores, confusion_scores, margins_of
from grandrounds.evaluation.estimates import class_correlations
from grandrounds.evaluation.score import Score
from grandrounds.seeding import numpy_generator

PROBABILITIES = np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5], [0.2, 0.8]])
LABELS = np.array([0, 0, 1, 1])
GROUPS = ["ann", "ann", "ann", "bob"]
PATIENTS = cases_of(LABELS, PROBABILITIES, GROUPS)


def test_images_of_a_patient_are_one_case():
    assert PATIENTS.count == 2
    assert cases_of(LABELS, PROBABILITIES).count == 4
    assert PATIENTS.predicted.tolist() == [0, 1, 0, 1]  # the lower of two equal ones
    assert PATIENTS.positives().tolist() == [1, 2]  # ann has both classes, bob the second alone
    assert PATIENTS.negatives().tolist() == [2, 1]


def test_confusion_counts_images_and_comes_back_from_counts():
    assert PATIENTS.confusion().tolist() == [[1, 1], [1, 1]]
    counts = np.array([[3, 0, 1], [0, 0, 0], [2, 5, 1]])
    again = cases_from_confusion(counts)
    assert again.confusion().tolist() == counts.tolist()
    assert again.count == 12


def test_cases_of_two_sites_are_different():
    both = joined([PATIENTS, CASES])
    assert both.count == 5
    assert both.confusion().tolist() == [[2, 2], [2, 3]]
    assert both.probabilities.shape == (9, 2)
    assert joined([PATIENTS, cases_from_confusion(CASES.confusion())]).probabilities is None


def test_refusals():
    with pytest.raises(ValueError, match="there are no sites"):
        joined([])


def test_no_image_gives_no_counts():
    empty = cases_of(np.zeros(0, np.int64), np.zeros((0, 2)))
    assert empty.count == 0


# Class 2 is only predicted, class 3 is nowhere, class 1 is never predicted.
CONFUSION = np.array([[4, 0, 2, 0], [3, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
FULL = np.array([[5, 1, 0], [2, 6, 2], [0, 0, 4]])


def samples(confusion):
    cases = cases_from_confusion(confusion)
    return cases.labels, cases.predicted


@pytest.mark.parametrize("confusion", [CONFUSION, FULL, np.array([[0, 0], [0, 7]])])
def test_agree_with_scikit_learn(confusion):
    labels, predicted = samples(confusion)
    found = confusion_scores(confusion)
    occurring = np.unique(labels)
    for average, among in (("weighted", None), ("macro", occurring)):
        expected = metrics.precision_recall_fscore_support(
            labels, predicted, labels=among, average=average, zero_division=0
        )
        assert float(found[f"precision_{average}"]) == pytest.approx(expected[0])
        assert float(found[f"f1_{average}"]) == pytest.approx(expected[2])
    assert float(found["accuracy"]) == pytest.approx(metrics.accuracy_score(labels, predicted))
    expected = metrics.recall_score(labels, predicted, labels=occurring, average="macro", zero_division=0)
    assert float(found["balanced_accuracy"]) == pytest.approx(expected)


def test_one_against_the_rest_is_the_mean_of_the_yes_or_no_questions():
    labels, predicted = samples(FULL)
    expected = np.mean([metrics.accuracy_score(labels == number, predicted == number) for number in range(3)])
    assert float(confusion_scores(FULL)["accuracy_one_vs_rest"]) == pytest.approx(expected)


def test_classes_agree_with_scikit_learns_yes_or_no_questions():
    labels, predicted = samples(FULL)
    found = confusion_class_scores(FULL)
    for number in range(3):
        yes, called = labels == number, predicted == number
        assert found["sensitivity"][number] == pytest.approx(metrics.recall_score(yes, called))
        assert found["specificity"][number] == pytest.approx(metrics.recall_score(~yes, ~called))
        assert found["precision"][number] == pytest.approx(metrics.precision_score(yes, called))
        assert found["f1"][number] == pytest.approx(metrics.f1_score(yes, called))


def test_a_class_that_is_missing_has_no_score_and_one_that_is_never_predicted_has_zero():
    found = confusion_class_scores(CONFUSION)
    assert found["precision"].tolist()[:2] == [pytest.approx(4 / 7), 0.0]
    for name in ("precision", "sensitivity", "f1"):
        assert np.isnan(found[name][2:]).all()
    assert found["specificity"].tolist() == pytest.approx([0, 1, 7 / 9, 1])
    alone = confusion_class_scores(np.array([[7, 0], [0, 0]]))
    assert math.isnan(alone["specificity"][0])  # a site of one class gives no estimate for the others


def test_many_matrices_at_once_are_as_one_by_one():
    together = confusion_scores(np.stack([CONFUSION[:3, :3], FULL]))
    for number, confusion in enumerate((CONFUSION[:3, :3], FULL)):
        for name, value in confusion_scores(confusion).items():
            assert together[name][number] == pytest.approx(float(value))


def test_a_score_of_few_cases_is_marked():
    few = Score(1.0, 1.0, 1.0, 9)
    assert few.to_json() == {"value": 1.0, "low": 1.0, "high": 1.0, "cases": 9, "few": True}
    assert Score(0.5, 0.4, math.nan, 10).to_json() == {"value": 0.5, "low": 0.4, "high": None, "cases": 10}


CASES = cases_of(
    np.array([0, 0, 1, 1, 1]),
    np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5], [0.2, 0.8], [0.3, 0.7]]),
    ["ann", "ann", "ann", "bob", "eve"],
)


def test_a_patient_is_drawn_with_all_images_or_not_at_all():
    weights = np.concatenate(list(resampled_weights(CASES, numpy_generator("cases"), 200)), axis=1).T
    assert (weights[:, 0] == weights[:, 1]).all()
    assert (weights[:, 0] == weights[:, 2]).all()
    assert (weights[:, 0] == 1).all()  # the only patient with the rarest class is in every sample
    assert (weights[:, 3] + weights[:, 4] == 2).all()
    assert 0.4 < (weights[:, 3] == 1).mean() < 0.6


def test_every_bootstrap_sample_has_as_many_cases_of_each_class():
    labels = np.repeat([0, 1, 2], [40, 3, 1])
    cases = cases_of(labels, np.eye(3)[labels])
    drawn = resampled_margins(cases, numpy_generator("strata"), 300)
    assert (drawn.true == [40, 3, 1]).all()


def test_resampled_margins_are_those_of_the_drawn_images():
    (weights,) = resampled_weights(CASES, numpy_generator("same"), 50)
    margins = resampled_margins(CASES, numpy_generator("same"), 50)
    for sample, drawn in enumerate(weights.T):
        confusion = np.zeros((2, 2))
        for row, times in enumerate(drawn):
            confusion[CASES.labels[row], CASES.predicted[row]] += times
        expected = margins_of(confusion)
        for name in ("correct", "true", "predicted"):
            assert getattr(margins, name)[sample].tolist() == getattr(expected, name).tolist()


def test_how_many_samples_are_held_at_once_changes_no_number(monkeypatch):
    draw = np.random.default_rng(7)
    labels = draw.integers(0, 3, 60)
    cases = cases_of(labels, draw.dirichlet(np.ones(3), 60), [str(case) for case in draw.integers(0, 40, 60)])
    whole = np.concatenate(list(resampled_weights(cases, numpy_generator("blocks"), 50)), axis=1)
    related = class_correlations(cases, numpy_generator("blocks"), 50)
    monkeypatch.setattr("grandrounds.evaluation.bootstrap.NUMBERS_AT_ONCE", 190)
    blocks = list(resampled_weights(cases, numpy_generator("blocks"), 50))
    assert {block.shape[1] for block in blocks} == {3, 2}
    assert np.array_equal(np.concatenate(blocks, axis=1), whole)
    for name, found in class_correlations(cases, numpy_generator("blocks"), 50).items():
        assert np.array_equal(found, related[name])


def test_resampling_nothing():
    with pytest.raises(ValueError, match=r"resamples .*got 0"):
        resampled_margins(CASES, numpy_generator("x"), 0)
    empty = cases_of(np.zeros(0, np.int64), np.zeros((0, 2)))
    assert resampled_margins(empty, numpy_generator("x"), 3).true.sum() == 0
