"""Cases, not images, are counted and drawn; intervals cover as often as they say."""

import math

import numpy as np
import pytest
from sklearn import metrics

from grandrounds.evaluation.bootstrap import (
    Cases,
    Estimate,
    cases_from_confusion,
    cases_of,
    class_estimates,
    interval_of,
    joined,
    mean_estimate,
    resampled_confusions,
    resampled_weights,
    score_estimates,
)
from grandrounds.evaluation.metrics import confusion_class_scores, confusion_scores
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
    assert both.count == 4
    assert both.confusion().tolist() == [[2, 2], [2, 2]]
    assert both.probabilities.shape == (8, 2)
    assert joined([PATIENTS, cases_from_confusion(CASES.confusion())]).probabilities is None


def test_refusals():
    with pytest.raises(ValueError, match=r"as many probabilities and groups as labels \(4\), got 4 and 3"):
        cases_of(LABELS, PROBABILITIES, ["a", "b", "c"])
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


def test_too_few_cases_give_their_count_alone():
    few = Estimate(1.0, 1.0, 1.0, 9)
    assert few.to_json() == {"value": None, "low": None, "high": None, "cases": 9}
    assert Estimate(0.5, 0.4, math.nan, 10).to_json() == {"value": 0.5, "low": 0.4, "high": None, "cases": 10}


def test_specificity_rests_on_the_others():
    draws = resampled_confusions(cases_from_confusion(FULL), numpy_generator("x"), 20)
    found = class_estimates(FULL, draws, np.array([6, 10, 4]), np.array([14, 10, 16]))
    assert [entry["sensitivity"].cases for entry in found] == [6, 10, 4]
    assert [entry["specificity"].cases for entry in found] == [14, 10, 16]
    assert found[0]["specificity"].enough
    assert not found[0]["sensitivity"].enough


def test_the_interval_of_an_accuracy_is_near_the_binomial_one():
    confusion = np.array([[70, 30], [0, 0]])
    draws = resampled_confusions(cases_from_confusion(confusion), numpy_generator("binomial"), 4000)
    found = score_estimates(confusion, draws, 100)["accuracy"]
    # 0.7 +- 1.96 sqrt(0.7 0.3 / 100)
    assert found.value == 0.7
    assert (found.low, found.high) == pytest.approx((0.61, 0.79), abs=0.015)


def test_images_of_few_patients_give_a_wider_interval_than_as_many_patients():
    labels, predicted = np.zeros(100, np.int64), np.repeat([0, 1], [70, 30])
    widths = []
    for images_each in (1, 10):
        cases = Cases(labels, predicted, np.arange(100) // images_each, None, 2)
        draws = resampled_confusions(cases, numpy_generator("wide"), 1000)
        found = score_estimates(cases.confusion(), draws, cases.count)["accuracy"]
        widths.append(found.high - found.low)
    assert widths[1] > 2.5 * widths[0]  # sqrt(10)


def test_draws_without_a_value_do_not_count_unless_they_are_most():
    low, high = interval_of(np.array([0.1, 0.2, math.nan, 0.3]))
    assert (low, high) == pytest.approx((0.105, 0.295))
    assert all(math.isnan(end) for end in interval_of(np.array([0.5, math.nan, math.nan])))


def test_the_mean_over_sites_is_unweighted_and_its_interval_smaller_than_a_sites():
    confusions = {"a": np.array([[8, 2], [0, 0]]), "b": np.array([[200, 200], [0, 0]])}
    draws = {
        site: resampled_confusions(cases_from_confusion(counts), numpy_generator(site), 2000)
        for site, counts in confusions.items()
    }
    found = mean_estimate(confusions, draws, 410)["accuracy"]
    assert found.value == pytest.approx(0.65)
    alone = score_estimates(confusions["a"], draws["a"], 10)["accuracy"]
    assert 0.4 < (found.high - found.low) / (alone.high - alone.low) < 0.6  # half of a's, as b's is small


CASES = cases_of(
    np.array([0, 0, 1, 1]),
    np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5], [0.2, 0.8]]),
    ["ann", "ann", "ann", "bob"],
)


def test_a_patient_is_drawn_with_all_images_or_not_at_all():
    weights = resampled_weights(CASES, numpy_generator("cases"), 200)
    assert (weights[:, 0] == weights[:, 1]).all()
    assert (weights[:, 0] == weights[:, 2]).all()
    assert (weights[:, 0] + weights[:, 3] == 2).all()  # two patients are drawn each time
    assert 0.4 < (weights[:, 0] == 1).mean() < 0.6


def test_resampled_confusions_are_those_of_the_drawn_images():
    weights = resampled_weights(CASES, numpy_generator("same"), 50)
    confusions = resampled_confusions(CASES, numpy_generator("same"), 50)
    for drawn, confusion in zip(weights, confusions, strict=True):
        expected = np.zeros((2, 2))
        for row, times in enumerate(drawn):
            expected[CASES.labels[row], CASES.predicted[row]] += times
        assert confusion.tolist() == expected.tolist()


def test_resampling_nothing():
    with pytest.raises(ValueError, match="resamples must be at least 1, got 0"):
        resampled_confusions(CASES, numpy_generator("x"), 0)
    empty = cases_of(np.zeros(0, np.int64), np.zeros((0, 2)))
    assert resampled_confusions(empty, numpy_generator("x"), 3).sum() == 0
