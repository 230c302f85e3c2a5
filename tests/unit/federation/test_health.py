"""A site that does not answer is left alone for a while; the others take turns."""

from collections import Counter
from itertools import combinations

import pytest

from grandrounds.federation.server.sites import SiteHealth, sample_sites

SITES = [f"site-{number}" for number in range(1, 11)]


def paused_rounds(health, site, after):
    return [number for number in range(after + 1, after + 20) if health.paused(site, number)]


def test_paused_sites_come_back_before_a_round_has_too_few():
    health = SiteHealth()
    health.missed("c", 5)
    health.missed("c", 6)  # paused longer than b
    health.missed("b", 6)
    assert health.available_sites(["a", "b", "c"], 7, needed=1) == ["a"]
    assert health.available_sites(["a", "b", "c"], 7, needed=2) == ["a", "b"]
    assert health.available_sites(["a", "b", "c"], 7, needed=3) == ["a", "b", "c"]


def test_pauses_double_up_to_eight_rounds():
    health, round_number, pauses = SiteHealth(), 1, []
    for _ in range(6):
        health.missed("a", round_number)
        paused = paused_rounds(health, "a", round_number)
        assert paused == list(range(round_number + 1, round_number + 1 + len(paused))), "it begins at once"
        pauses.append(len(paused))
        round_number += len(paused) + 1
    assert pauses == [1, 2, 4, 8, 8, 8]


def test_an_answer_ends_the_pause_and_forgets_the_misses():
    health = SiteHealth()
    health.missed("a", 1)
    health.missed("a", 3)
    health.answered("a")
    assert not paused_rounds(health, "a", 3)
    health.missed("a", 9)
    assert paused_rounds(health, "a", 9) == [10]


def test_sites_do_not_share_their_fate():
    health = SiteHealth()
    health.missed("a", 1)
    assert not health.paused("b", 2)


def test_the_state_survives_and_is_a_copy():
    health, restored = SiteHealth(), SiteHealth()
    health.missed("a", 1)
    health.missed("a", 3)
    restored.load_state_dict(health.state_dict())
    health.answered("a")
    assert paused_rounds(restored, "a", 3) == [4, 5]
    restored.missed("a", 6)
    assert paused_rounds(restored, "a", 6) == [7, 8, 9, 10]


def test_a_sample_is_the_same_whoever_lists_the_sites_and_however_often():
    drawn = sample_sites(SITES, 3, seed=5, round_number=2)
    assert sample_sites(reversed(SITES), 3, seed=5, round_number=2) == drawn
    assert len(set(drawn)) == 3
    assert drawn == sorted(drawn, key=SITES.index)


def test_rounds_and_seeds_draw_differently():
    by_round = {tuple(sample_sites(SITES, 3, seed=5, round_number=number)) for number in range(20)}
    by_seed = {tuple(sample_sites(SITES, 3, seed=number, round_number=1)) for number in range(20)}
    assert len(by_round) > 10
    assert len(by_seed) > 10


@pytest.mark.parametrize("count", [None, 10, 99])
def test_all_take_part_when_no_fewer_are_asked_for(count):
    assert sample_sites(reversed(SITES), count, seed=1, round_number=1) == SITES


def test_every_pair_is_equally_likely():
    pairs = Counter(tuple(sample_sites(SITES[:4], 2, seed=1, round_number=number)) for number in range(1200))
    assert set(pairs) == set(combinations(SITES[:4], 2))
    # Expected 200 each, standard deviation 13.
    assert max(abs(count - 200) for count in pairs.values()) < 60
