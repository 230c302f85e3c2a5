"""Areas under the curves of two outcomes have known values at the ends and in between."""

import math

import numpy as np
import pytest

from benchmarks.fed_align_cl_ham10000 import measures


def curve_areas(labels, scores):
    return tuple(measures.curve_areas(np.array(labels), scores).values())


def test_trapezoids_are_above_the_average_precision():
    # Average precision of the same scores is 0.833333.
    assert curve_areas([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]) == pytest.approx((0.75, 0.791667), abs=1e-6)


def test_perfect_and_reversed_scores():
    assert curve_areas([0, 0, 1, 1], [1, 2, 3, 4]) == (1.0, 1.0)
    # Reversed: precision 0, 0, 1/3, 1/2 at recall 0, 0, 1/2, 1.
    assert curve_areas([1, 1, 0, 0], [1, 2, 3, 4]) == pytest.approx((0.0, (0 + 1 / 3) / 4 + (1 / 3 + 1 / 2) / 4))


def test_monotone_changes_of_the_scores_change_nothing():
    scores = [0.1, 0.4, 0.35, 0.8]
    assert curve_areas([0, 1, 0, 1], scores) == curve_areas([0, 1, 0, 1], [math.exp(score) for score in scores])


@pytest.mark.parametrize("labels", [[0, 0], [1, 1]])
def test_a_site_without_one_class_has_no_area(labels):
    assert all(math.isnan(area) for area in curve_areas(labels, [0.1, 0.2]))
