"""A run starts when enough sites are there, and says in one line who is when they are not."""

import re
import time

import pytest
from nvflare.apis.signal import Signal

from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.sites import await_sites


class Arrivals:
    """Lists the sites that are connected at each look."""

    def __init__(self, *looks):
        self._looks = list(looks)
        self.count = 0

    def __call__(self):
        self.count += 1
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]


def test_enough_sites_are_not_waited_for():
    arrivals = Arrivals(["a", "b"])
    started = time.monotonic()
    assert await_sites(arrivals, 2, timeout=30, abort_signal=Signal(), pause=30) is True
    assert arrivals.count == 1
    assert time.monotonic() - started < 5


def test_it_goes_on_as_soon_as_the_last_one_comes():
    arrivals = Arrivals([], ["a"], ["a", "b"], ["a", "b", "c"])
    assert await_sites(arrivals, 2, timeout=30, abort_signal=Signal(), pause=0.001) is True
    assert arrivals.count == 3


@pytest.mark.parametrize(("found", "names"), [(["a"], "a"), ([], "none")])
def test_too_few_are_named_after_the_timeout(found, names):
    message = (
        f"{len(found)} sites are connected after 0.01 s, min_sites is 2: start more sites or lower min_sites "
        f"(connected: {names})"
    )
    started = time.monotonic()
    with pytest.raises(GrandRoundsError, match=f"^{re.escape(message)}$"):
        await_sites(Arrivals(found), 2, timeout=0.01, abort_signal=Signal(), pause=30)
    assert 0.01 <= time.monotonic() - started < 5, "a pause is no longer than the timeout"


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
