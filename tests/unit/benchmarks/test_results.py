"""The intervals of a difference."""

import pytest

from benchmarks.results import Pair, resampled_margin, untested_difference


def test_the_corrected_interval_is_that_of_nadeau_and_bengio():
    # Differences 1, 2, 3: s = 1, t = 4.3027, Student's margin 4.3027 / sqrt(3) = 2.484; corrected, with r = 1,
    # 4.3027 * sqrt(1/3 + 1) = 4.968.
    assert resampled_margin(2.484, 3, 1.0) == pytest.approx(4.968)
    pair = Pair([2, 4, 6], [1, 2, 3], 1.0)
    assert untested_difference(pair) == "2.000 [-0.484, 4.484], corrected [-2.968, 6.968] (r 1.00)"
    assert untested_difference(pair._replace(ratio=None)) == "2.000 [-0.484, 4.484]"


def test_without_test_images_nothing_is_corrected():
    assert resampled_margin(0.1, 5, 0.0) == 0.1
