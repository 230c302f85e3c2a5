"""The soak's growth of memory is that of lives, and not of the processes that follow one another."""

import pytest

from benchmarks.soak import run as soak

MIB = 2**20


def life(first, rounds, level, slope):
    """A process whose memory jumps in its first rounds, and then grows by so many MiB a round."""
    sizes = [level / 2 if n < 3 else level + slope * n for n in range(rounds)]
    return [(n / 2, first + n, int(size * MIB)) for n, size in enumerate(sizes) for _ in range(2)]


def test_a_process_with_fresh_memory_hides_no_growth():
    """Through all samples of both the line falls; within each it rises by half a MiB a round."""
    lives = [life(0, 20, 400, 0.5), life(20, 15, 300, 0.5)]
    assert soak.growth(lives) == {"value": 50.0, "processes": 2, "rounds": 16 + 11}


def test_first_rounds_are_no_growth():
    assert soak.growth([life(0, 40, 400, 0.0)]) == {"value": 0.0, "processes": 1, "rounds": 36}


def test_lives_are_weighted_by_their_information():
    """Two of 10 rounds that grow by 1 and a long one that does not: by least squares, in hundredths of a round squared."""
    lives = [life(0, 14, 100, 1.0), life(14, 14, 100, 1.0), life(0, 104, 100, 0.0)]
    # Sums of squared distances from the mean of n rounds in a row are (n^3 - n) / 12; every round has two samples.
    short, long = 2 * (11**3 - 11) / 12, 2 * (101**3 - 101) / 12
    assert soak.growth(lives)["value"] == pytest.approx(100 * 2 * short / (2 * short + long), abs=0.01)


def test_too_few_rounds_give_no_growth():
    assert soak.growth([life(0, 15, 100, 1.0), life(15, 2, 100, 1.0)])["value"] is None


def test_a_figure_has_the_first_sample_of_each_minute():
    found = soak.each_minute(life(10, 5, 100, 1.0))
    assert found == {"minutes": [0.0, 1.0, 2.0], "rounds": [10, 12, 14], "mib": [50.0, 50.0, 104.0]}
