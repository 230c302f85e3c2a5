"""Sites are sampled, paused and awaited; mandatory ones are named by the server's file and by the job."""

import json
import re
import time
from collections import Counter
from itertools import combinations

import pytest
from nvflare.apis.signal import Signal

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.server.sites import (
    SiteHealth,
    await_sites,
    joined_sites,
    read_roster,
    require_names,
    sample_sites,
)

SITES = [f"site-{number}" for number in range(1, 11)]


def paused_rounds(health, site, after):
    return [number for number in range(after + 1, after + 20) if health.paused(site, number)]


def test_paused_sites_come_back_before_a_round_has_too_few():
    health = SiteHealth()
    for number in (4, 5, 6):
        health.missed("c", number)  # paused longer than b
    for number in (5, 6):
        health.missed("b", number)
    assert health.available_sites(["a", "b", "c"], 7, needed=1) == ["a"]
    assert health.available_sites(["a", "b", "c"], 7, needed=2) == ["a", "b"]
    assert health.available_sites(["a", "b", "c"], 7, needed=3) == ["a", "b", "c"]


def test_one_missed_round_pauses_nobody_and_further_ones_double_the_pause_up_to_eight_rounds():
    health, round_number, pauses = SiteHealth(), 1, []
    for _ in range(7):
        health.missed("a", round_number)
        paused = paused_rounds(health, "a", round_number)
        assert paused == list(range(round_number + 1, round_number + 1 + len(paused))), "it begins at once"
        pauses.append(len(paused))
        round_number += len(paused) + 1
    assert pauses == [0, 1, 2, 4, 8, 8, 8]


def test_an_answer_ends_the_pause_and_forgets_the_misses():
    health = SiteHealth()
    health.missed("a", 1)
    health.missed("a", 2)
    assert paused_rounds(health, "a", 2) == [3]
    health.answered("a")
    assert not paused_rounds(health, "a", 2)
    health.missed("a", 9)
    assert not paused_rounds(health, "a", 9)


def test_a_site_that_replies_is_asked_again_soon_however_often_its_task_fails():
    health = SiteHealth()
    health.missed("a", 1, silent=False)
    assert not paused_rounds(health, "a", 1), "one fault costs one round"
    for number in (2, 4, 6, 8):
        health.missed("a", number, silent=False)
        assert paused_rounds(health, "a", number) == [number + 1]
    assert health.pauses(9) == {"a": 10}


def test_sites_do_not_share_their_fate():
    health = SiteHealth()
    health.missed("a", 1)
    health.missed("a", 2)
    assert health.paused("a", 3)
    assert not health.paused("b", 3)


def test_the_state_survives_and_is_a_copy():
    health, restored = SiteHealth(), SiteHealth()
    for number in (1, 2, 4):
        health.missed("a", number)
    restored.load_state_dict(health.state_dict())
    health.answered("a")
    assert paused_rounds(restored, "a", 4) == [5, 6]
    restored.missed("a", 7)
    assert paused_rounds(restored, "a", 7) == [8, 9, 10, 11]


def test_a_sample_depends_neither_on_the_order_nor_on_repetition_of_the_sites():
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


class Arrivals:
    """Lists the sites that are connected at each look."""

    def __init__(self, *looks):
        self._looks = list(looks)
        self.count = 0

    def __call__(self):
        self.count += 1
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]


def test_enough_sites_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"waits {seconds} s"))
    arrivals = Arrivals(["a", "b"])
    assert await_sites(arrivals, 2, timeout=30, abort_signal=Signal(), pause=30) is True
    assert arrivals.count == 1


def test_waiting_ends_when_the_last_site_is_connected():
    arrivals = Arrivals([], ["a"], ["a", "b"], ["a", "b", "c"])
    assert await_sites(arrivals, 2, timeout=30, abort_signal=Signal(), pause=0.001) is True
    assert arrivals.count == 3


@pytest.mark.parametrize(("found", "names"), [(["a"], "a"), ([], "none")])
def test_too_few_are_named_after_the_timeout(found, names, monkeypatch):
    """A pause is no longer than the timeout."""
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    message = (
        f"{len(found)} sites are connected after 0.01 s, min_sites is 2: start more sites or lower min_sites "
        f"(connected: {names})"
    )
    with pytest.raises(GrandRoundsError, match=f"^{re.escape(message)}$"):
        await_sites(Arrivals(found), 2, timeout=0.01, abort_signal=Signal(), pause=30)
    assert {*pauses} == {0.01}


def test_a_mandatory_site_is_waited_for_however_many_others_there_are():
    arrivals = Arrivals(["a", "b"], ["a", "b"], ["a", "b", "c"])
    assert await_sites(arrivals, 1, timeout=30, abort_signal=Signal(), pause=0.001, mandatory=["c", "a"]) is True
    assert arrivals.count == 3


def test_a_mandatory_site_that_stays_away_is_named():
    with pytest.raises(GrandRoundsError, match=r"^z is mandatory and not connected after 0.01 s \(connected: a, b\)"):
        await_sites(Arrivals(["a", "b"]), 1, timeout=0.01, abort_signal=Signal(), pause=30, mandatory=["a", "z"])


def test_an_abort_ends_the_waiting_without_an_error():
    signal = Signal()
    looks = []

    def connected():
        looks.append(1)
        if len(looks) == 3:
            signal.trigger(True)
        return ["a"]

    assert await_sites(connected, 2, timeout=30, abort_signal=signal, pause=0.001) is False
    assert len(looks) == 3


def test_a_server_without_the_file_requires_no_site(tmp_path):
    assert read_roster(tmp_path / "roster.json") == ()


def test_the_servers_sites_are_read(tmp_path):
    path = tmp_path / "roster.json"
    path.write_text(json.dumps({"mandatory_sites": ["hospital-b", "hospital-a"]}))
    assert read_roster(path) == ("hospital-b", "hospital-a")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"mandatory": ["a"]}', "'mandatory_sites' is missing"),
        ('{"mandatory_sites": ["a"], "least": 2}', "unknown key 'least'; expected mandatory_sites"),
        ('{"mandatory_sites": "a"}', "must be a list of different names"),
        ('{"mandatory_sites": ["a", "a"]}', "must be a list of different names"),
        ('{"mandatory_sites": [1]}', "must be a list of different names"),
    ],
)
def test_a_damaged_file_stops_the_run_and_is_named(tmp_path, text, reason):
    """Else a slip of the pen would waive what the consortium has agreed on."""
    path = tmp_path / "roster.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=f"roster.json.* {reason}"):
        read_roster(path)


def test_names_of_a_job_are_checked():
    with pytest.raises(ConfigurationError, match=r"mandatory_sites .*got 'a'"):
        require_names("a", "mandatory_sites")


def test_a_job_adds_to_the_servers_sites():
    assert joined_sites(("a",), ("b", "a")) == ("a", "b")
