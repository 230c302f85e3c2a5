"""Groups of classes, and both readings of a prediction."""

import numpy as np
import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.grouping import grouped_cases, grouping_of, summed_probabilities

CLASSES = ("mel", "nv", "bcc", "ak", "bkl", "df", "vasc", "scc")
GROUPS = {"malignant": ("mel", "bcc", "ak", "scc"), "benign": ("nv", "bkl", "df", "vasc")}
GROUPING = grouping_of(GROUPS, CLASSES)
MALIGNANT, BENIGN = 0, 1


def predicted(probabilities, grouping=GROUPING):
    found = grouped_cases(np.zeros(len(probabilities), np.int64), probabilities, probabilities.argmax(1), grouping)
    return {reading: one.predicted.tolist() for reading, one in found.items()}


def test_every_class_has_the_index_of_its_group():
    assert GROUPING.names == ("malignant", "benign")
    assert [GROUPING.names[group] for group in GROUPING.group_of] == [
        "malignant" if name in GROUPS["malignant"] else "benign" for name in CLASSES
    ]


def test_the_two_readings_of_one_prediction_differ():
    probabilities = np.array([[0.2, 0.3, 0.2, 0.2, 0.1, 0, 0, 0]])
    assert summed_probabilities(probabilities, GROUPING)[0] == pytest.approx([0.6, 0.4])
    assert predicted(probabilities) == {"argmax": [BENIGN], "summed": [MALIGNANT]}


def test_one_half_is_enough_for_the_first_group():
    half = np.array([[0.25, 0.5, 0.25, 0, 0, 0, 0, 0], [0, 0.75, 0.25, 0, 0, 0, 0, 0]])
    assert predicted(half)["summed"] == [MALIGNANT, BENIGN]
    turned = grouping_of(dict(reversed(GROUPS.items())), CLASSES)
    assert [turned.names[group] for group in predicted(half, turned)["summed"]] == ["benign", "benign"]


def test_more_than_two_groups_are_read_alike():
    three = grouping_of({"a": ["mel", "nv"], "b": ["bcc", "ak", "bkl"], "c": ["df", "vasc", "scc"]}, CLASSES)
    probabilities = np.array([[0.1, 0.1, 0.2, 0.15, 0.05, 0.3, 0.1, 0.0]])
    assert summed_probabilities(probabilities, three)[0] == pytest.approx([0.2, 0.4, 0.4])
    assert predicted(probabilities, three)["argmax"] == [2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"benign": ("nv", "bkl", "df", "vasc", "akiec")}, "groups: benign: 'akiec' is not one of the classes .*leave"),
        ({"benign": ("nv", "bkl", "df")}, "vasc of the model's classes are in no group; .* other=vasc$"),
        ({"benign": ("nv", "bkl", "df", "vasc", "mel")}, "class 'mel' is named twice"),
        ({"other": ()}, "--groups: other has no class"),
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
