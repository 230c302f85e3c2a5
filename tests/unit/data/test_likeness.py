"""Which pictures look the same, found without comparing each with each."""

import numpy as np
import pytest
from scipy.spatial import cKDTree

from grandrounds.data import leaks
from grandrounds.data.leaks import near_pairs


def pictures(count, seed=0, noise=0):
    """Thumbnails that are smooth, as photographs are; the second half are the first again, with some noise."""
    generator = np.random.default_rng(seed)
    few = generator.integers(0, 256, (count, 4, 4)).repeat(4, 1).repeat(4, 2).reshape(count, 256)
    again = few + generator.integers(-noise, noise + 1, few.shape)
    return np.concatenate([few, again]).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("noise", [0, 3])
def test_every_picture_finds_its_copy_and_no_other(noise):
    assert near_pairs(pictures(300, noise=noise)).tolist() == [[row, row + 300] for row in range(300)]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("numbers", [50, 1 << 22])
def test_the_candidates_are_those_of_a_tree(seed, numbers, monkeypatch):
    """Of points that lie near a plane, some with a coordinate that is the same for all, in small and large parts."""
    monkeypatch.setattr(leaks, "NUMBERS_AT_A_TIME", numbers)
    generator = np.random.default_rng(seed)
    plane = generator.normal(size=(generator.integers(1, 120), 3)) @ generator.normal(size=(3, 16))
    points = (plane * (1, 5, 20)[seed % 3] + 128 + generator.normal(size=plane.shape)).astype(np.float32)
    points[:, seed % 16] = 5
    found = [tuple(sorted(pair)) for pair in leaks._within(points, 6.0).tolist()]
    assert sorted(found) == sorted(cKDTree(points).query_pairs(6.0, p=np.inf))


def test_too_many_candidates_are_not_compared(monkeypatch):
    monkeypatch.setattr(leaks, "MAX_CANDIDATES", 299)
    assert near_pairs(pictures(300)) is None
    monkeypatch.setattr(leaks, "MAX_CANDIDATES", 300)
    assert len(near_pairs(pictures(300))) == 300


def test_pictures_that_show_too_little_are_no_copies():
    assert near_pairs(np.full((5, 256), 9, np.uint8)).shape == (0, 2)
