"""Counts by class leave a site only where all of them are of enough patients."""

import json

import numpy as np
import pytest

from grandrounds.evaluation.bootstrap import Cases, cases_from_confusion
from grandrounds.evaluation.counts import (
    HIDDEN,
    SiteCounts,
    check_counts,
    counts_from_json,
    counts_to_json,
    has_small_counts,
)
from grandrounds.evaluation.estimates import class_estimates, counts_of, pooled_counts, score_estimates
from grandrounds.evaluation.tables_of_cases import site_counts

CONFUSION = np.array([[40, 12, 0], [15, 20, 11], [10, 0, 14]])


def of(confusion):
    return site_counts([cases_from_confusion(np.array(confusion))])


def test_patients_are_counted_and_not_images():
    labels, predicted = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])
    found = site_counts([Cases(labels, predicted, np.array([0, 0, 0, 1]), None, 2)])
    assert found.images.tolist() == [[[2, 1, 0], [1, 0, 1]]]
    assert found.patients.tolist() == [[[1, 1, 0], [1, 0, 1]]]


@pytest.mark.parametrize(
    ("confusion", "minimum", "small"),
    [
        ([[90, 15, 0], [20, 30, 0], [0, 0, 12]], 10, False),  # zeros are no small counts
        ([[90, 15, 0], [20, 30, 0], [9, 0, 12]], 10, True),
        ([[90, 15, 0], [20, 30, 0], [9, 0, 12]], 9, False),
        ([[1]], 0, False),
    ],
)
def test_a_count_of_one_to_the_minimum_less_one_is_small(confusion, minimum, small):
    assert has_small_counts(of(confusion), minimum) is small


def test_patients_and_not_images_are_few():
    labels, groups = np.zeros(20, np.int64), np.repeat(np.arange(4), 5)
    assert has_small_counts(site_counts([Cases(labels, labels, groups, None, 2)]), 10)


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
    counts = of(CONFUSION)
    again = counts_from_json(json.loads(json.dumps(counts_to_json(counts))), (1, 3, 3))
    assert np.array_equal(again.images, counts.images)
    assert np.array_equal(again.patients, counts.patients)
