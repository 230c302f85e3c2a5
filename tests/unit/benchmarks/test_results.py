"""The intervals of a difference."""

import pytest

from benchmarks.results import Pair, difference_cells, resampled_margin, untested_difference
from grandrounds.evaluation.comparisons import detectable_difference


def test_the_corrected_interval_is_that_of_nadeau_and_bengio():
    # Differences 1, 2, 3: s = 1, t = 4.3027, Student's margin 4.3027 / sqrt(3) = 2.484; corrected, with r = 1,
    # 4.3027 * sqrt(1/3 + 1) = 4.968.
    assert resampled_margin(2.484, 3, 1.0) == pytest.approx(4.968)
    pair = Pair([2, 4, 6], [1, 2, 3], 1.0)
    assert untested_difference(pair) == "2.000 [-0.484, 4.484], corrected [-2.968, 6.968] (r 1.00)"
    assert untested_difference(pair._replace(ratio=None)) == "2.000 [-0.484, 4.484]"


def test_what_only_students_interval_shows_is_marked_and_d_is_of_both_intervals():
    pair = Pair([3, 4, 5], [0, 0, 0], 1.0)  # Student's margin 2.484, corrected 4.968
    d = detectable_difference(1.0, 3)
    assert difference_cells([pair]) == [
        f"4.000 [1.516, 6.484] †, corrected [-0.968, 8.968] (r 1.00); p 0.020; d {d:.3f}, corrected {2 * d:.3f}"
    ]
    assert "†" not in untested_difference(Pair([6, 7, 8], [0, 0, 0], 1.0))  # in neither is 0
    assert "†" not in untested_difference(Pair([1, 2, 3], [0, 0, 0], 1.0))  # in both


def test_without_test_images_nothing_is_corrected():
    assert resampled_margin(0.1, 5, 0.0) == 0.1
