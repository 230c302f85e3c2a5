"""Scores of classes and of groups of classes."""

import math

import numpy as np
import pytest
import sklearn.metrics

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.metrics import precision_recall_f1
from grandrounds.evaluation.per_class import (
    class_scores,
    group_predictions,
    group_scores,
    grouping_of,
    per_class,
    summed_probabilities,
)
from grandrounds.seeding import numpy_generator

LABELS = np.array([0, 0, 1, 1, 1])
SCORES = np.array([0.9, 0.4, 0.4, 0.3, 0.6])
PROBABILITIES = np.stack([SCORES, 1 - SCORES], axis=1)


def random_site(name, samples=60, classes=4, absent=()):
    generator = numpy_generator("per class", name)
    probabilities = generator.dirichlet(np.ones(classes), size=samples).round(1) + 0.1
    labels = generator.choice([c for c in range(classes) if c not in absent], size=samples)
    return labels, probabilities / probabilities.sum(axis=1, keepdims=True)


def test_hand_computed_five_samples():
    first = class_scores(LABELS, PROBABILITIES)[0]
    assert first[:4] == pytest.approx((2, 0.5, 0.5, 0.5))
    # Pairs of a sample of the class and another: 0.9 wins three, 0.4 wins one, draws one and loses one.
    assert first.auroc == pytest.approx(4.5 / 6)
    # Precision 1 at 0.9, 2/4 at 0.4 (with the draw), each for half of the recall.
    assert first.average_precision == pytest.approx((1 + 0.5) / 2)


def test_hard_labels_have_one_threshold():
    first = class_scores(LABELS, PROBABILITIES)[0]
    sensitivity, specificity, precision, prevalence = 0.5, 2 / 3, 0.5, 0.4
    assert first.auroc_hard_label == pytest.approx((sensitivity + specificity) / 2)
    # Trapezoids from (0, 1) to (recall, precision) to (1, prevalence).
    area = sensitivity * (1 + precision) / 2 + (1 - sensitivity) * (precision + prevalence) / 2
    assert first.auprc_hard_label == pytest.approx(area)


def test_precision_recall_and_f1_are_those_of_scikit_learn():
    labels, probabilities = random_site("sklearn")
    expected = sklearn.metrics.precision_recall_fscore_support(
        labels, probabilities.argmax(axis=1), labels=range(4), zero_division=0
    )
    found = class_scores(labels, probabilities)
    for column, name in zip(expected, ("precision", "recall", "f1", "n"), strict=True):
        assert [getattr(scores, name) for scores in found] == pytest.approx(column)


def test_area_under_the_curve_is_the_share_of_pairs_in_the_right_order():
    labels, probabilities = random_site("pairs")
    for number, scores in enumerate(class_scores(labels, probabilities)):
        own, other = probabilities[labels == number, number], probabilities[labels != number, number]
        wins = (own[:, None] > other).mean() + (own[:, None] == other).mean() / 2
        assert scores.auroc == pytest.approx(wins)


def test_an_absent_class_is_unknown_and_one_never_predicted_has_no_precision():
    probabilities = np.array([[0.8, 0.1, 0.1], [0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    _, second, third = class_scores(np.array([0, 1, 0]), probabilities)
    assert second[:4] == (1, 0, 0, 0)
    assert second.auroc == pytest.approx(0.75)
    assert second.auprc_hard_label == pytest.approx((1 + 1 / 3) / 2)
    assert third.n == 0
    assert all(math.isnan(value) for value in third[1:])


def test_without_other_classes_there_is_no_curve():
    only, _ = class_scores(np.array([0, 0]), np.array([[0.9, 0.1], [0.4, 0.6]]))
    assert only[:4] == pytest.approx((2, 1, 0.5, 2 / 3))
    assert all(math.isnan(value) for value in only[4:])


def test_the_mean_is_over_sites_that_have_the_class_and_pooled_is_of_all_samples():
    sites = {"a": random_site("a"), "b": random_site("b", absent=(2,)), "c": random_site("c", absent=(2, 3))}
    table = per_class(sites)
    at = {site: class_scores(*found) for site, found in sites.items()}
    assert table.sites == [3, 3, 1, 2]
    assert table.mean[3].f1 == pytest.approx((at["a"][3].f1 + at["b"][3].f1) / 2)
    assert table.mean[2].auroc == at["a"][2].auroc
    assert table.mean[0].n == sum(int((labels == 0).sum()) for labels, _ in sites.values())
    labels, probabilities = (np.concatenate(parts) for parts in zip(*sites.values(), strict=True))
    assert table.pooled[1].auroc == pytest.approx(sklearn.metrics.roc_auc_score(labels == 1, probabilities[:, 1]))
    assert table.pooled[1].average_precision == pytest.approx(
        sklearn.metrics.average_precision_score(labels == 1, probabilities[:, 1])
    )


def test_a_class_that_no_site_has_is_unknown_everywhere():
    table = per_class({"a": random_site("x", absent=(1,)), "b": random_site("y", absent=(1,))})
    assert table.sites[1] == 0
    assert math.isnan(table.mean[1].f1)
    assert math.isnan(table.pooled[1].f1)


def test_rows_of_the_confusion_matrix_are_true_classes():
    assert precision_recall_f1(np.array([[1, 3], [0, 4]]))[1] == pytest.approx((4, 4 / 7, 1, 8 / 11))


def test_values_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="no sites"):
        per_class({})
    with pytest.raises(ValueError, match="row 0 of probabilities sums to 2"):
        class_scores(np.array([0]), np.array([[1.0, 1.0]]))
    with pytest.raises(ValueError, match="one length"):
        class_scores(np.array([0, 1]), np.array([[1.0, 0.0]]))


CLASSES = ("mel", "nv", "bcc", "ak", "bkl", "df", "vasc", "scc")
GROUPS = {"malignant": ("mel", "bcc", "ak", "scc"), "benign": ("nv", "bkl", "df", "vasc")}
GROUPING = grouping_of(GROUPS, CLASSES)
MALIGNANT, BENIGN = 0, 1


def test_every_class_has_the_index_of_its_group():
    assert GROUPING.names == ("malignant", "benign")
    assert [GROUPING.names[group] for group in GROUPING.group_of] == [
        "malignant" if name in GROUPS["malignant"] else "benign" for name in CLASSES
    ]


def test_the_two_readings_of_one_prediction_differ():
    probabilities = np.array([[0.2, 0.3, 0.2, 0.2, 0.1, 0, 0, 0]])
    assert summed_probabilities(probabilities, GROUPING)[0] == pytest.approx([0.6, 0.4])
    found = group_predictions(probabilities, GROUPING)
    assert found["argmax"].tolist() == [BENIGN]
    assert found["summed"].tolist() == [MALIGNANT]


def test_one_half_is_enough_for_the_first_group():
    half = np.array([[0.25, 0.5, 0.25, 0, 0, 0, 0, 0], [0, 0.75, 0.25, 0, 0, 0, 0, 0]])
    assert group_predictions(half, GROUPING)["summed"].tolist() == [MALIGNANT, BENIGN]
    turned = grouping_of(dict(reversed(GROUPS.items())), CLASSES)
    assert [turned.names[group] for group in group_predictions(half, turned)["summed"]] == ["benign", "benign"]


def test_scores_of_each_group_are_those_of_scikit_learn_in_both_readings():
    generator = numpy_generator("grouping")
    probabilities = generator.dirichlet(np.ones(8), size=200)
    labels = generator.integers(0, 2, size=200)
    sums = probabilities[:, [CLASSES.index(name) for name in GROUPS["malignant"]]].sum(axis=1)
    top = [CLASSES[index] in GROUPS["malignant"] for index in probabilities.argmax(axis=1)]
    expected = {"argmax": np.where(top, MALIGNANT, BENIGN), "summed": np.where(sums >= 0.5, MALIGNANT, BENIGN)}
    found = group_scores(labels, probabilities, GROUPING)
    assert found.keys() == expected.keys()
    assert (expected["argmax"] != expected["summed"]).any()
    for reading, predicted in expected.items():
        scores = sklearn.metrics.precision_recall_fscore_support(labels, predicted, labels=[MALIGNANT, BENIGN])
        for group, row in zip(("malignant", "benign"), zip(*scores, strict=True), strict=True):
            entry = found[reading][group]
            assert (entry.precision, entry.recall, entry.f1, entry.n) == pytest.approx(row)


def test_more_than_two_groups_are_read_alike():
    three = grouping_of({"a": ["mel", "nv"], "b": ["bcc", "ak", "bkl"], "c": ["df", "vasc", "scc"]}, CLASSES)
    probabilities = np.array([[0.1, 0.1, 0.2, 0.15, 0.05, 0.3, 0.1, 0.0]])
    assert summed_probabilities(probabilities, three)[0] == pytest.approx([0.2, 0.4, 0.4])
    assert group_predictions(probabilities, three)["argmax"].tolist() == [2]


def test_a_group_without_samples_is_unknown():
    scores = group_scores(np.array([BENIGN]), np.eye(8)[[1]], GROUPING)["summed"]
    assert math.isnan(scores["malignant"].recall)
    assert scores["benign"] == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"benign": ("nv", "bkl", "df", "vasc", "akiec")}, "groups: benign: 'akiec' is not one of the classes .*leave"),
        ({"benign": ("nv", "bkl", "df")}, "class 'vasc' of the model is in no group"),
        ({"benign": ("nv", "bkl", "df", "vasc", "mel")}, "class 'mel' is named twice"),
        ({"other": ()}, "groups: other has no class"),
    ],
)
def test_groups_that_do_not_divide_the_classes_are_refused(change, message):
    with pytest.raises(ConfigurationError, match=message):
        grouping_of({**GROUPS, **change}, CLASSES)


def test_one_group_is_no_division():
    with pytest.raises(ConfigurationError, match="at least two, got all"):
        grouping_of({"all": CLASSES}, CLASSES)


def test_probabilities_of_another_vocabulary_are_refused():
    with pytest.raises(ValueError, match=r"\(samples, 8\), got \(1, 7\)"):
        summed_probabilities(np.full((1, 7), 1 / 7), GROUPING)
