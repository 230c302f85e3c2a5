"""The noise is normal, independent, fresh, and nowhere missing.

Bounds are seven standard errors wide: a sound generator fails one of these tests about once in 10^11 runs.
"""

import hashlib
import math

import numpy as np
import pytest
import torch
from scipy import stats

from grandrounds.privacy.mechanisms.gaussian import PAIRS_AT_ONCE, grid_spacing, standard_normals, with_noise

COUNT = 400_000
WIDE = 7.0


def test_draws_have_the_normal_distribution():
    assert stats.kstest(standard_normals(COUNT), "norm").pvalue > 1e-10


def test_mean_variance_and_tails_are_those_of_the_normal():
    normals = standard_normals(COUNT)
    assert abs(normals.mean()) < WIDE / math.sqrt(COUNT)
    assert abs(normals.var() - 1) < WIDE * math.sqrt(2 / COUNT)
    beyond = 2 * stats.norm.sf(3)
    assert abs((abs(normals) > 3).mean() - beyond) < WIDE * math.sqrt(beyond / COUNT)


def test_neighbours_and_halves_are_uncorrelated():
    normals = standard_normals(COUNT)
    # The two numbers of a pair lie half the draw apart; their lengths must also be independent.
    for first, second in ((normals[1:], normals[:-1]), np.split(normals, 2), np.split(normals**2, 2)):
        assert abs(np.corrcoef(first, second)[0, 1]) < WIDE / math.sqrt(len(first))


def test_two_draws_have_nothing_in_common():
    first, second = standard_normals(COUNT), standard_normals(COUNT)
    assert np.intersect1d(first, second).size < 5
    assert abs(np.corrcoef(first, second)[0, 1]) < WIDE / math.sqrt(COUNT)


def test_a_draw_of_several_blocks_has_no_repetition_and_the_right_length():
    count = 2 * PAIRS_AT_ONCE + 101
    normals = standard_normals(count)
    assert normals.shape == (count,)
    assert np.unique(normals).size > count - 5


def test_box_and_muller_by_hand():
    # u1 = 2^-1 needs the word 2^52 - 1, because one is added; u2 = 1/8 is an eighth of a turn.
    words = np.array([((1 << 52) - 1) << 11, 1 << 61], np.uint64).tobytes()
    expected = math.sqrt(2 * math.log(2)) * math.sqrt(0.5)
    np.testing.assert_allclose(standard_normals(2, lambda size: words), [expected, expected], rtol=1e-12)


def test_no_bytes_give_an_infinite_number():
    assert abs(standard_normals(2, bytes)).max() == pytest.approx(math.sqrt(2 * 53 * math.log(2)))


def test_every_entry_has_noise_of_the_right_size_around_its_value():
    value = torch.full((500, 400), 5.0)
    noise = (with_noise(value, 0.25) - value).numpy()
    assert (noise != 0).mean() > 0.9999
    assert abs(noise.std() / 0.25 - 1) < WIDE / math.sqrt(2 * noise.size)
    assert abs(noise.mean()) < WIDE * 0.25 / math.sqrt(noise.size)


@pytest.mark.parametrize("sigma", [1e-6, 0.3, 1.0, 7.0])
def test_sums_lie_on_a_grid_of_about_a_millionth_of_the_noise(sigma):
    released = with_noise(torch.linspace(-3 * sigma, 3 * sigma, 1001), sigma)
    spacing = grid_spacing(sigma)
    assert sigma / 2**21 < spacing <= sigma / 2**20
    assert torch.equal(torch.round(released / spacing) * spacing, released)
    assert released.dtype == torch.float64


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan])
def test_a_sigma_that_is_not_positive_is_refused(sigma):
    with pytest.raises(ValueError, match=r"sigma must be a positive number, got"):
        with_noise(torch.ones(1), sigma)


def test_bytes_come_from_the_argument_alone():
    def stream(size: int) -> bytes:
        return hashlib.shake_256(b"fixed").digest(size)

    np.testing.assert_array_equal(standard_normals(7, stream), standard_normals(7, stream))
