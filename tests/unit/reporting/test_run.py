"""Bytes of a run are added over sites, by direction."""

import pytest

from grandrounds.reporting.run import traffic


def test_traffic_is_summed_over_sites_for_each_direction():
    sizes = {
        "site-1": {"down.global": 1, "down.peer-1": 20, "down.peer-2": 30, "up.update": 400},
        "site-2": {"up.update": 5000, "down.global": 2},
    }
    assert traffic(sizes) == (3, 50, 5400)


def test_an_unknown_direction_is_refused():
    with pytest.raises(ValueError, match=r"site-1.*down.NAME.*up.NAME.*'global'"):
        traffic({"site-1": {"global": 1}})
