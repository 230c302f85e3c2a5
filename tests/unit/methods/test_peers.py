"""Peers are similar, known and never the target itself; their average hides the order they came in."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.methods.fedperl.peers import (
    anonymised_peer,
    chance_within_group,
    in_warm_up,
    pick_matrix,
    similar_peers,
    within_group_share,
)
from grandrounds.seeding import torch_generator

# Of the sites site-0 to site-9 only these have trained.
SEEN = ["site-0", "site-2", "site-5"]
LIKENESS = torch.tensor([[1.0, 0.3, 0.8], [0.3, 1.0, 0.5], [0.8, 0.5, 1.0]])
DEVICES = dict(zip("abcdefghij", ["isic"] * 5 + ["ham"] * 3 + ["pad", "derm"], strict=True))


def states(count, dtype=torch.float32):
    generator = torch_generator("states", count)
    scale = 10.0 ** torch.randint(-12, 12, (count, 6, 50), generator=generator)
    values = torch.randn(count, 6, 50, generator=generator) * scale
    return [{"w": values[k].to(dtype), "n": torch.tensor(k)} for k in range(count)]


def same_bits(first, second):
    return all(
        first[name].dtype == second[name].dtype
        and first[name].contiguous().reshape(-1).view(torch.uint8).tolist()
        == second[name].contiguous().reshape(-1).view(torch.uint8).tolist()
        for name in first.keys() | second.keys()
    )


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


@pytest.mark.parametrize(
    ("sites", "likeness", "top", "message"),
    [
        (SEEN, LIKENESS, -1, "top must be at least 0, got -1"),
        (["site-0", "site-0", "site-2"], LIKENESS, 1, "each site may be listed once"),
        (SEEN, LIKENESS[:2], 1, r"similarity must have shape \(3, 3\), got \(2, 3\)"),
        (SEEN, LIKENESS * math.nan, 1, "the similarities of site-0 have NaN"),
    ],
)
def test_refuses_a_similarity_that_does_not_rank_the_sites(sites, likeness, top, message):
    with pytest.raises(ValueError, match=message):
        similar_peers("site-0", sites, likeness, top)


def test_peers_come_from_round_eleven_on():
    assert [number for number in range(1, 14) if not in_warm_up(number)] == [11, 12, 13]
    assert not in_warm_up(1, warm_up=0)


@pytest.mark.parametrize(("number", "warm_up", "name"), [(0, 10, "round_number"), (1, -1, "warm_up")])
def test_refuses_rounds_counted_from_zero(number, warm_up, name):
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        in_warm_up(number, warm_up)


def test_the_average_matches_the_hand_computed_entries():
    first = {"w": torch.tensor([1.0, 2.0]), "bn.running_var": torch.tensor([1.0]), "n": torch.tensor(7)}
    second = {"w": torch.tensor([3.0, 6.0]), "bn.running_var": torch.tensor([3.0]), "n": torch.tensor(4)}
    average = anonymised_peer([first, second])
    assert {name: value.tolist() for name, value in average.items()} == {
        "w": [2.0, 4.0],
        "bn.running_var": [2.0],
        "n": 7,
    }
    assert list(average) == list(first)
    assert first["w"].tolist() == [1.0, 2.0]
    assert second["w"].tolist() == [3.0, 6.0]


def test_the_average_model_is_not_the_average_of_the_models():
    # relu(w x) at x = 1 with w = 1 and w = -3.
    models = [{"w": torch.tensor([1.0])}, {"w": torch.tensor([-3.0])}]
    assert sum(torch.relu(model["w"]).item() for model in models) / 2 == 0.5
    assert torch.relu(anonymised_peer(models)["w"]).item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_average_is_bit_for_bit_the_same_in_any_order(dtype):
    models = states(4, dtype)
    averages = [anonymised_peer(order) for order in itertools.permutations(models)]
    assert all(same_bits(averages[0], average) for average in averages)
    mean = np.mean([model["w"].double().numpy() for model in models], axis=0)
    np.testing.assert_allclose(averages[0]["w"].double().numpy(), mean, rtol=torch.finfo(dtype).eps, atol=1e-9)


@given(order=st.permutations([1e16, 1.0, -1e16, 1.0, 3.0]))
def test_cancellation_does_not_bring_the_order_back(order):
    # Added from left to right, in double precision, these give 0 to 5.
    forward = anonymised_peer([{"w": torch.tensor([value], dtype=torch.float64)} for value in order])
    backward = anonymised_peer([{"w": torch.tensor([value], dtype=torch.float64)} for value in sorted(order)])
    assert same_bits(forward, backward)


def test_one_state_gives_a_copy_with_the_same_bits():
    state = {"w": torch.tensor([-0.0, 1e-45, 3.4e38]), "h": torch.tensor([0.1], dtype=torch.bfloat16)}
    copy = anonymised_peer([state])
    assert same_bits(copy, state)
    copy["w"].zero_()
    copy["h"].zero_()
    assert state["w"][2] > 0
    assert state["h"][0] > 0


def test_one_state_gives_a_copy_of_its_counters_and_views_too():
    state = {"n": torch.tensor([3]), "mask": torch.tensor([True, False]), "w": torch.arange(6.0).reshape(2, 3).T}
    copy = anonymised_peer([state])
    assert same_bits(copy, state)
    copy["n"].zero_()
    copy["mask"].zero_()
    assert state["n"].item() == 3
    assert state["mask"].tolist() == [True, False]


def test_the_average_carries_no_gradient_to_the_peers():
    parameter = torch.nn.Parameter(torch.ones(2))
    assert not anonymised_peer([{"w": parameter}, {"w": parameter}])["w"].requires_grad


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"v": torch.zeros(2)}, "state 1 and state 0 do not both have v"),
        ({"w": torch.zeros(1)}, r"w is \(1,\) torch.float32 in state 1, but \(2,\) torch.float32 in state 0"),
        ({"w": torch.zeros(2).double()}, r"w is \(2,\) torch.float64 in state 1"),
    ],
)
def test_refuses_states_of_different_models(second, message):
    with pytest.raises(ValueError, match=message):
        anonymised_peer([{"w": torch.zeros(2)}, second])


def test_refuses_an_average_of_nothing():
    with pytest.raises(ValueError, match="needs at least one state, got none"):
        anonymised_peer([])


def test_chance_matches_the_ten_sites_of_the_paper():
    chance = chance_within_group(DEVICES)
    assert chance["a"] == pytest.approx(4 / 9)
    assert chance["f"] == pytest.approx(2 / 9)
    assert chance["i"] == 0.0
    assert math.isnan(chance_within_group({"a": "isic"})["a"])


def test_chance_is_what_picking_every_other_site_once_gives():
    picks = list(itertools.permutations(DEVICES, 2))
    assert within_group_share(picks, DEVICES) == pytest.approx(chance_within_group(DEVICES))


def test_share_within_the_group_is_of_each_sites_own_picks():
    share = within_group_share([("a", "b"), ("a", "c"), ("a", "f"), ("f", "a")], DEVICES)
    assert share["a"] == pytest.approx(2 / 3)
    assert share["f"] == 0.0
    assert math.isnan(share["b"])


def test_pick_matrix_has_targets_in_rows_and_sums_to_one_where_there_are_picks():
    matrix = pick_matrix([("b", "a"), ("b", "c"), ("b", "a"), ("b", "a"), ("c", "b")], ["a", "b", "c"])
    assert matrix.tolist() == [[0, 0, 0], [0.75, 0, 0.25], [0, 1, 0]]


@pytest.mark.parametrize("pick", [("a", "z"), ("z", "a")])
def test_refuses_a_pick_of_an_unknown_site(pick):
    with pytest.raises(ValueError, match=r"the pick of \w for \w names a site that is not among"):
        pick_matrix([pick], ["a", "b"])
    with pytest.raises(ValueError, match=r"the pick of \w for \w names a site that is not among"):
        within_group_share([pick], DEVICES)
