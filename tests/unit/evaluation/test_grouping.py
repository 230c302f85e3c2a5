"""Eight diagnoses read as benign or malignant, in both ways."""

import math

import numpy as np
import pytest
import sklearn.metrics

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.grouping import group_predictions, group_scores, grouping_of, summed_probabilities
from grandrounds.seeding import numpy_generator

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
