"""Peers are sites that have trained and that a policy accepts, never the target itself."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial import KDTree
from scipy.stats import kstest, truncnorm

from grandrounds.methods.fedperl.peer_selection import (
    nearest_peers,
    noise_image,
    passing_peers,
    random_peers,
    similar_peers,
    similarity_matrix,
)
from grandrounds.seeding import numpy_generator, torch_generator

# Of the sites site-0 to site-9 only these have trained.
SEEN = ["site-0", "site-2", "site-5"]
LIKENESS = torch.tensor([[1.0, 0.3, 0.8], [0.3, 1.0, 0.5], [0.8, 0.5, 1.0]])


@pytest.mark.parametrize(
    ("target", "top", "peers"),
    [
        ("site-0", 2, ["site-5", "site-2"]),
        ("site-0", 1, ["site-5"]),
        ("site-2", 1, ["site-5"]),
        ("site-0", 5, ["site-5", "site-2"]),  # fewer are known than asked for
        ("site-0", 0, []),
        ("site-7", 2, []),  # has not trained
    ],
)
def test_peers_are_the_most_similar_sites_that_have_trained(target, top, peers):
    assert similar_peers(target, SEEN, LIKENESS, top) == peers


def test_the_row_of_the_target_ranks_its_peers():
    likeness = torch.tensor([[1.0, 0.9, 0.1], [0.1, 1.0, 0.5], [0.9, 0.5, 1.0]])
    assert similar_peers("site-0", SEEN, likeness, top=1) == ["site-2"]


@given(data=st.data())
def test_peers_are_never_the_target_and_do_not_depend_on_the_order_of_rows(data):
    sites = [f"site-{number}" for number in range(6)]
    values = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=36, max_size=36))
    order = data.draw(st.permutations(range(6)))
    likeness = torch.tensor(values).reshape(6, 6)
    peers = similar_peers("site-3", sites, likeness, top=3)
    moved = likeness[order][:, order]
    assert "site-3" not in peers
    assert len(set(peers)) == 3
    assert similar_peers("site-3", [sites[row] for row in order], moved, top=3) == peers


def test_of_equally_similar_sites_the_first_in_natural_order_is_taken():
    sites = ["site-10", "site-1", "site-2"]
    assert similar_peers("site-1", sites, torch.ones(3, 3), top=1) == ["site-2"]
    assert similar_peers("site-10", sites, torch.ones(3, 3), top=1) == ["site-1"]


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


def test_a_site_that_has_not_trained_draws_no_peer():
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


def test_distances_are_compared_in_double_precision():
    # In single precision both distances are 1e4.
    points = {"a": torch.tensor([1e4]), "b": torch.tensor([0.0]), "c": torch.tensor([1e-4])}
    assert nearest_peers("a", points, top=1) == ["c"]


def test_a_target_without_embedding_has_no_nearest():
    assert nearest_peers("d", {"a": torch.zeros(1)}, top=1) == []


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


ACCURACY = {"0": 0.7, "1": 0.7, "2": 0.69}
FOUR = torch.tensor([[9.0, 2.0, 1.0], [12.0, 1.0, 2.0], [10.0, 4.0, 1.0], [9.0, 4.0, 1.0]])
NAMES = ["X0", "X1", "X2", "X3"]


def similar_to_the_first(scaling, gate):
    likeness = similarity_matrix(FOUR, scaling)
    values = dict(zip(NAMES[1:], likeness[0, 1:].tolist(), strict=True))
    best = similar_peers("X0", NAMES, likeness, top=2)
    return passing_peers(best, "gated_similarity", gate=gate, target="X0", similarity=values)


def test_validation_keeps_who_is_at_least_as_accurate_as_the_site_itself():
    assert passing_peers(["1", "2"], "validation", target="0", accuracy=ACCURACY) == ["1"]
    assert passing_peers(["0", "1"], "validation", target="2", accuracy=ACCURACY) == ["0", "1"]


def test_a_gate_above_every_accuracy_passes_no_peer_and_one_that_is_met_passes():
    assert passing_peers(["1", "2"], "gated_validation", gate=0.75, accuracy=ACCURACY) == []
    assert passing_peers(["1", "2"], "gated_validation", gate=0.7, accuracy=ACCURACY) == ["1"]
    assert passing_peers(["1", "2"], "gated_validation", gate=0.69, accuracy=ACCURACY) == ["1", "2"]


def test_a_relative_gate_is_a_share_of_the_best_accuracy_of_all_models():
    # 0.75 * 0.9 = 0.675: the best model is the target's own.
    accuracy = {"0": 0.9, "1": 0.68, "2": 0.67}
    assert passing_peers(["1", "2"], "gated_validation", gate=0.75, scale="relative", accuracy=accuracy) == ["1"]
    assert passing_peers(["1", "2"], "gated_validation", gate=0.0, scale="relative", accuracy=accuracy) == ["1", "2"]


def test_the_gate_on_raw_cosines_keeps_all_and_on_scaled_ones_only_the_most_similar():
    assert similar_to_the_first("none", gate=0.95) == ["X1", "X2"]
    assert similar_to_the_first("minmax", gate=0.95) == ["X3"]
    assert similar_to_the_first("minmax", gate=0.85) == ["X3", "X2"]


def test_a_relative_similarity_gate_is_a_share_of_the_targets_best():
    # 0.9 * 0.5 = 0.45
    likeness = {"1": 0.5, "2": 0.46, "3": 0.44}
    kept = passing_peers(["1", "2", "3"], "gated_similarity", gate=0.9, scale="relative", similarity=likeness)
    assert kept == ["1", "2"]


def test_similarity_does_not_decide_a_validation_gate_nor_accuracy_a_similarity_gate():
    values = {"accuracy": {"1": 0.9, "2": 0.1}, "similarity": {"1": 0.1, "2": 0.9}}
    assert passing_peers(["1", "2"], "gated_validation", gate=0.5, **values) == ["1"]
    assert passing_peers(["1", "2"], "gated_similarity", gate=0.5, **values) == ["2"]


def test_without_a_policy_all_pass_whatever_is_known():
    peers = ["2", "1"]
    kept = passing_peers(peers, "none", gate=1.0)
    assert kept == peers
    assert kept is not peers


@given(
    values=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    gate=st.floats(0, 1),
    policy=st.sampled_from(["validation", "gated_validation", "gated_similarity"]),
    scale=st.sampled_from(["absolute", "relative"]),
)
def test_who_passes_keeps_the_order_and_a_relative_gate_is_never_the_stricter(values, gate, policy, scale):
    known = dict(zip("dabc", values, strict=True))
    found = {
        chosen: passing_peers(
            ["c", "a", "b"], policy, gate=gate, scale=chosen, target="d", accuracy=known, similarity=known
        )
        for chosen in ("absolute", "relative")
    }
    assert found[scale] == [peer for peer in ("c", "a", "b") if peer in found[scale]]
    assert set(found["absolute"]) <= set(found["relative"])


@pytest.mark.parametrize("policy", ["validation", "gated_validation", "gated_similarity"])
def test_of_no_peers_none_pass(policy):
    assert passing_peers([], policy, gate=0.5, scale="relative", target="0", accuracy=ACCURACY, similarity={}) == []
