"""The report has the numbers of its parts."""

import numpy as np
import pytest
import sklearn.metrics

from grandrounds.evaluation.external import ImagePredictions, external_report, scores
from grandrounds.evaluation.per_class import grouping_of
from grandrounds.seeding import numpy_generator

CLASSES = ("a", "b", "c")
GROUPING = grouping_of({"bad": ["a", "c"], "good": ["b"]}, CLASSES)


def predictions(name, samples, labels=None):
    generator = numpy_generator("report", name)
    drawn = generator.integers(0, 3, size=samples) if labels is None else np.array(labels)
    names = tuple(f"{name}/{number}" for number in range(samples))
    return ImagePredictions(names, drawn, generator.dirichlet(np.ones(3), size=samples))


def test_scores_of_eight_samples():
    confidence = np.array([0.95, 0.90, 0.85, 0.80, 0.55, 0.50, 0.45, 0.40])
    probabilities = np.stack([confidence, *[(1 - confidence) / 2] * 2], axis=1)
    found = scores(np.array([0, 0, 0, 1, 0, 1, 1, 0]), probabilities)
    # Accuracy and mean confidence of the eight are 0.625 and 0.675.
    assert found["accuracy"] == 0.625
    assert (found["ece"], found["mce"], found["risk"]) == pytest.approx((0.05, 0.05, 0.375))
    assert found["aurc"] == pytest.approx(np.mean([0, 0, 0, 1 / 4, 1 / 5, 2 / 6, 3 / 7, 3 / 8]))
    assert found["coverage_at_risk_0.1"] == 3 / 8


def test_a_softmax_that_sums_to_a_little_more_than_one_is_no_error():
    assert scores(np.array([0]), np.array([[1 + 1e-7, 0]]))["ece"] == 0


def test_the_mean_is_over_sites_and_pooled_is_over_samples():
    sites = {"one": predictions("one", 40), "two": predictions("two", 10)}
    found = external_report(sites, CLASSES)
    accuracies = [np.mean(p.probabilities.argmax(axis=1) == p.labels) for p in sites.values()]
    assert found["labels"] == "classes"
    assert [found["sites"][name]["accuracy"] for name in sites] == pytest.approx(accuracies)
    assert found["mean"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert found["pooled"]["accuracy"] == pytest.approx(np.average(accuracies, weights=[40, 10]))
    assert found["mean"]["n"] == found["pooled"]["n"] == 50
    assert found["classes"]["b"]["sites"] == 2
    assert found["classes"]["b"]["pooled"]["n"] == sum(int((p.labels == 1).sum()) for p in sites.values())
    assert "groups" not in found


def test_groups_come_beside_classes_when_the_labels_are_classes():
    sites = {"one": predictions("one", 30)}
    found = external_report(sites, CLASSES, GROUPING)
    (only,) = sites.values()
    true, bad = only.labels != 1, only.probabilities[:, [0, 2]].sum(axis=1) >= 0.5
    assert found["labels"] == "classes"
    assert found["groups"]["summed"]["bad"]["f1"] == pytest.approx(sklearn.metrics.f1_score(true, bad))
    top = only.probabilities.argmax(axis=1) != 1
    assert found["groups"]["argmax"]["bad"]["precision"] == pytest.approx(sklearn.metrics.precision_score(true, top))
    assert found["groups"]["scores"]["accuracy"] == pytest.approx(np.mean(true == bad))


def test_labels_that_are_groups_give_no_scores_of_classes():
    sites = {"one": predictions("one", 4, [0, 0, 1, 1]), "two": predictions("two", 3, [1, 1, 0])}
    found = external_report(sites, CLASSES, GROUPING, labels_are_groups=True)
    assert found["labels"] == "groups"
    assert "classes" not in found
    assert found["groups"]["argmax"]["bad"]["n"] == 3
    assert found["pooled"] == found["groups"]["scores"]
    right = [
        np.mean((p.probabilities[:, 1] > 0.5) == (p.labels == 1)) for p in sites.values()
    ]  # index 1 of the groups is "good", which is class b alone
    assert [found["sites"][name]["accuracy"] for name in sites] == pytest.approx(right)


def test_labels_that_are_groups_need_a_grouping():
    with pytest.raises(ValueError, match="no grouping"):
        external_report({"one": predictions("one", 3)}, CLASSES, labels_are_groups=True)
