"""Shares of peers within a site's own community."""

import itertools
import math

import pytest

from grandrounds.methods.fedperl.communities import (
    chance_within_group,
    pick_matrix,
    within_group_share,
)

DEVICES = dict(zip("abcdefghij", ["isic"] * 5 + ["ham"] * 3 + ["pad", "derm"], strict=True))


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
