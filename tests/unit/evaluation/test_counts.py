"""Counts by class leave a site only where they are of enough patients and cannot be found by subtraction."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grandrounds.evaluation.bootstrap import Cases, cases_from_confusion
from grandrounds.evaluation.counts import (
    HIDDEN,
    SiteCounts,
    check_counts,
    counts_from_json,
    counts_to_json,
    site_counts,
    suppress_counts,
)
from grandrounds.evaluation.estimates import class_estimates, score_estimates
from grandrounds.evaluation.tallies import counts_of, pooled_counts

CONFUSION = np.array([[40, 12, 0], [15, 20, 11], [10, 0, 14]])


def of(confusion, minimum=0):
    return site_counts([cases_from_confusion(np.array(confusion))], minimum)


def test_patients_are_counted_and_not_images():
    labels, predicted = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])
    found = site_counts([Cases(labels, predicted, np.array([0, 0, 0, 1]), None, 2)])
    assert found.images.tolist() == [[[2, 1, 0], [1, 0, 1]]]
    assert found.patients.tolist() == [[[1, 1, 0], [1, 0, 1]]]


def test_a_small_count_is_hidden_with_its_class_and_the_smallest_other_class():
    found = of([[90, 15, 0], [20, 30, 0], [4, 0, 12]], 10).images[0]
    # Four of the third class are missed; the second class has the fewest patients of the others.
    assert found[:, :2].tolist() == [[90, 15], [HIDDEN, HIDDEN], [HIDDEN, HIDDEN]]
    assert found[:, 2].tolist() == [24, 15, 0]


@settings(max_examples=100)
@example(cells=[0, 0, 0, 1], minimum=2)
@example(cells=[0, 0, 1, 0], minimum=2)
@given(
    cells=st.lists(st.integers(0, 40), min_size=4, max_size=25),
    minimum=st.integers(2, 12),
)
def test_nothing_small_is_shown_or_can_be_found_by_subtraction(cells, minimum):
    classes = int(len(cells) ** 0.5)
    confusion = np.array(cells[: classes**2]).reshape(classes, classes)
    full, shown = of(confusion), of(confusion, minimum)
    hidden = shown.patients[0] == HIDDEN
    assert not ((shown.patients > 0) & (shown.patients < minimum)).any()
    for column in range(3):  # the sum of a column is known from the accuracy
        rest = full.patients[0][hidden[:, column], column]
        assert rest.sum() == 0 or rest.sum() >= minimum or hidden[:, column].all()
        shown_others = full.patients[0][~hidden[:, column], column]
        assert hidden[:, column].sum() != 1 or rest.sum() == 0 or not shown_others.any()
    check_counts(shown.images, shown.patients, (1, classes, 3))
    again = suppress_counts(shown, minimum)
    assert np.array_equal(again.patients[0] == HIDDEN, hidden)


def test_pooled_counts_give_the_scores_of_all_predictions():
    other = np.array([[30, 5, 3], [2, 25, 8], [6, 4, 10]])
    sites = [of(CONFUSION), of(other)]
    total = CONFUSION + other
    found = pooled_counts(sites, 0, (0, 1, 2), int(total.sum()), int(np.trace(total)))
    expected = counts_of(cases_from_confusion(total))
    for name, estimate in score_estimates(expected).items():
        assert score_estimates(found)[name] == pytest.approx(estimate), name
    for ours, theirs in zip(class_estimates(found), class_estimates(expected), strict=True):
        assert {name: estimate.value for name, estimate in ours.items()} == pytest.approx(
            {name: estimate.value for name, estimate in theirs.items()}
        )


def test_a_class_that_no_site_shows_has_no_score_and_one_that_some_hide_no_precision():
    hiding = SiteCounts(
        np.array([[[20, 30, 12], [HIDDEN, HIDDEN, HIDDEN], [HIDDEN, HIDDEN, HIDDEN]]]),
        np.array([[[20, 30, 12], [HIDDEN, HIDDEN, HIDDEN], [HIDDEN, HIDDEN, HIDDEN]]]),
    )
    shown = of(CONFUSION)
    both = class_estimates(pooled_counts([hiding, shown], 0, (0, 1, 2), 200, 100))
    assert both[1]["sensitivity"].value == pytest.approx(20 / 46)
    assert np.isnan(both[1]["precision"].value)
    alone = pooled_counts([hiding], 0, (0, 1, 2), 100, 50)
    assert class_estimates(alone)[1]["sensitivity"].cases == HIDDEN
    assert not class_estimates(alone)[1]["sensitivity"].enough


@pytest.mark.parametrize(
    ("images", "patients", "message"),
    [
        (np.zeros((1, 2, 3)), np.zeros((1, 2, 3)), "images must be int64 of shape"),
        (np.zeros((1, 3, 3), np.int64), np.zeros((1, 2, 3), np.int64), "images must be int64 of shape"),
        (np.full((1, 2, 3), -2), np.full((1, 2, 3), -2), "counts must not be negative"),
        (np.zeros((1, 2, 3), np.int64), np.full((1, 2, 3), -7), "counts must not be negative"),
        (np.full((1, 2, 3), 4), np.full((1, 2, 3), 5), "at least one image of each patient"),
        (np.full((1, 2, 3), 4), np.zeros((1, 2, 3), np.int64), "no image without a patient"),
        (np.full((1, 2, 3), 2**63 - 1), np.full((1, 2, 3), 2**63 - 1), "a count must be at most 1e\\+09"),
        (np.array([[[-1, 4, 4]] * 2]), np.array([[[-1, 4, 4]] * 2]), "must be hidden together"),
    ],
)
def test_counts_of_another_party_are_checked(images, patients, message):
    with pytest.raises(ValueError, match=message):
        check_counts(images, patients, (1, 2, 3))


def test_counts_come_back_from_json():
    counts = of(CONFUSION, 11)
    again = counts_from_json(json.loads(json.dumps(counts_to_json(counts))), (1, 3, 3))
    assert np.array_equal(again.images, counts.images)
    assert np.array_equal(again.patients, counts.patients)
