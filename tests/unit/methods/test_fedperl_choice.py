"""Peers at random, and FedMatch's: those whose models say nearly the same about one image of noise."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.spatial import KDTree
from scipy.stats import kstest, truncnorm

from grandrounds.methods.fedperl.peer_selection import nearest_peers, noise_image, random_peers
from grandrounds.seeding import numpy_generator, torch_generator

SITES = [f"site-{number}" for number in range(12)]


def generator(*purpose):
    return numpy_generator("choice", *purpose)


def test_random_peers_are_others_that_have_trained_and_each_at_most_once():
    for seed in range(200):
        peers = random_peers("site-3", SITES[:6], 4, generator(seed))
        assert len(set(peers)) == 4
        assert set(peers) <= set(SITES[:6]) - {"site-3"}


def test_every_ordered_pair_of_others_is_equally_likely():
    drawn = Counter(tuple(random_peers("site-0", SITES[:4], 2, generator("pairs", seed))) for seed in range(1200))
    assert set(drawn) == set(permutations(SITES[1:4], 2))
    # Expected 200 each, standard deviation 13.
    assert max(abs(count - 200) for count in drawn.values()) < 60


def test_more_peers_than_are_known_are_all_of_them():
    assert sorted(random_peers("site-1", SITES[:3], 9, generator())) == ["site-0", "site-2"]
    assert random_peers("site-1", ["site-1"], 9, generator()) == []
    assert random_peers("site-1", SITES, 0, generator()) == []


def test_a_site_that_has_not_trained_draws_nobody():
    assert random_peers("site-11", SITES[:3], 2, generator()) == []


def test_the_draw_does_not_depend_on_the_order_in_which_sites_are_listed():
    expected = random_peers("site-3", SITES, 5, generator("order"))
    assert random_peers("site-3", SITES[::-1], 5, generator("order")) == expected
    assert [type(name) for name in expected] == [str] * 5
    assert random_peers("site-3", SITES, 5, generator("another")) != expected


@pytest.mark.parametrize("top", [1, 3, 11])
def test_the_nearest_are_those_of_a_tree_of_points(top):
    points = torch.randn(12, 8, generator=torch_generator("embeddings"), dtype=torch.float64)
    embeddings = dict(zip(SITES, points, strict=True))
    tree = KDTree(points.numpy())
    for row, site in enumerate(SITES):
        _, nearest = tree.query(points[row].numpy(), k=top + 1)
        assert nearest_peers(site, embeddings, top) == [SITES[index] for index in nearest[1:]]


def test_the_distance_is_euclidean():
    # To a: 1.8 to b and 1.9 to c; by sums of absolute differences b would be the farther, 2.5 to 1.9.
    points = {"a": torch.zeros(2), "b": torch.tensor([1.3, 1.2]), "c": torch.tensor([1.9, 0.0])}
    assert nearest_peers("a", points, top=2) == ["b", "c"]


def test_equal_distances_are_in_natural_order_and_more_than_there_are_is_all():
    points = {site: torch.zeros(3) for site in ("site-10", "site-2", "site-1")}
    assert nearest_peers("site-1", points, top=9) == ["site-2", "site-10"]


def test_distances_are_told_apart_in_double_precision():
    # In single precision both distances are 1e4.
    points = {"a": torch.tensor([1e4]), "b": torch.tensor([0.0]), "c": torch.tensor([1e-4])}
    assert nearest_peers("a", points, top=1) == ["c"]


def test_a_target_without_embedding_has_no_nearest():
    assert nearest_peers("d", {"a": torch.zeros(1)}, top=1) == []


@pytest.mark.parametrize(
    "choose", [lambda: random_peers("a", ["a"], -1, generator()), lambda: nearest_peers("a", {}, -1)]
)
def test_fewer_than_no_peers_are_refused(choose):
    with pytest.raises(ValueError, match="top must be at least 0, got -1"):
        choose()


@pytest.mark.parametrize(("choice", "mean", "deviation"), [("fedmatch", 125, 125), ("fedmatch_released", 0, 1)])
def test_noise_has_the_distribution_of_the_truncated_normal(choice, mean, deviation):
    image = noise_image(choice, 3, 64, generator("noise"))
    assert image.shape == (1, 3, 64, 64)
    assert image.dtype == torch.float32
    assert 0 <= image.min() <= image.max() <= 1
    expected = truncnorm(-mean / deviation, (255 - mean) / deviation, loc=mean / 255, scale=deviation / 255)
    values = image.double().numpy().ravel()
    # Four standard errors of 12,288 values.
    assert abs(values.mean() - expected.mean()) < 4 * expected.std() / np.sqrt(values.size)
    assert kstest(values, expected.cdf).pvalue > 1e-3


def test_the_noise_of_the_release_is_nearly_black():
    assert noise_image("fedmatch_released", 3, 64, generator("noise")).max() < 5 / 255
    assert noise_image("fedmatch", 3, 64, generator("noise")).mean() == pytest.approx(0.5, abs=0.02)


def test_the_noise_is_the_generators():
    first, second = (noise_image("fedmatch", 1, 8, generator("noise", 1)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, noise_image("fedmatch", 1, 8, generator("noise", 2)))
