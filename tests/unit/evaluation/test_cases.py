"""Cases, not images, are counted."""

import numpy as np
import pytest

from grandrounds.evaluation.cases import (
    cases_from_confusion,
    cases_of,
    joined,
)

PROBABILITIES = np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5], [0.2, 0.8]])
LABELS = np.array([0, 0, 1, 1])
GROUPS = ["ann", "ann", "ann", "bob"]
CASES = cases_of(LABELS, PROBABILITIES, GROUPS)


def test_images_of_a_patient_are_one_case():
    assert CASES.count == 2
    assert cases_of(LABELS, PROBABILITIES).count == 4
    assert CASES.predicted.tolist() == [0, 1, 0, 1]  # the lower of two equal ones
    assert CASES.positives().tolist() == [1, 2]  # ann has both classes, bob the second alone
    assert CASES.negatives().tolist() == [2, 1]


def test_confusion_counts_images_and_comes_back_from_counts():
    assert CASES.confusion().tolist() == [[1, 1], [1, 1]]
    counts = np.array([[3, 0, 1], [0, 0, 0], [2, 5, 1]])
    again = cases_from_confusion(counts)
    assert again.confusion().tolist() == counts.tolist()
    assert again.count == 12


def test_cases_of_two_sites_are_different():
    both = joined([CASES, CASES])
    assert both.count == 4
    assert both.confusion().tolist() == [[2, 2], [2, 2]]
    assert both.probabilities.shape == (8, 2)
    assert joined([CASES, cases_from_confusion(CASES.confusion())]).probabilities is None


def test_refusals():
    with pytest.raises(ValueError, match=r"as many probabilities and groups as labels \(4\), got 4 and 3"):
        cases_of(LABELS, PROBABILITIES, ["a", "b", "c"])
    with pytest.raises(ValueError, match="there are no sites"):
        joined([])


def test_no_image_gives_no_counts():
    empty = cases_of(np.zeros(0, np.int64), np.zeros((0, 2)))
    assert empty.count == 0
