"""The effects in an analysis of variance of Fed-Align-CL's two parts."""

import numpy as np
import pytest

from benchmarks.fed_align_cl_ham10000.report import LAST
from benchmarks.fed_align_devices.report import FACTORIAL, SITES, _effects

AREAS = {"fed": (0.80, 0.70), "fed_cl": (0.82, 0.71), "fed_align": (0.76, 0.68), "fed_align_cl": (0.75, 0.72)}


class Found:
    def __init__(self, arms):
        self.settings = {"poor": arms}


def run(area):
    """A run whose sites' mean is ``area``."""
    sites = {site: {"roc": area + shift} for site, shift in zip(SITES, (-0.1, 0.0, 0.1), strict=True)}
    return {"models": {"federation": {"scores": {LAST: {"sites": sites}}}}}


def arms():
    return {name: {seed: run(area) for seed, area in enumerate(areas, 1)} for name, areas in AREAS.items()}


def test_effects_are_differences_between_levels_within_seeds():
    found = [np.subtract(pair.ours, pair.theirs) for pair in _effects(Found(arms()), "poor")]
    assert found == [
        pytest.approx([-0.055, -0.005]),  # (.76 + .75 - .80 - .82) / 2, (.68 + .72 - .70 - .71) / 2
        pytest.approx([0.005, 0.025]),  # (.82 + .75 - .80 - .76) / 2, (.71 + .72 - .70 - .68) / 2
        pytest.approx([-0.03, 0.03]),  # (.75 - .76) - (.82 - .80), (.72 - .68) - (.71 - .70)
    ]


@pytest.mark.parametrize("missing", FACTORIAL)
def test_a_seed_counts_where_all_four_arms_have_it(missing):
    some = arms()
    del some[missing][1]
    assert [len(pair.ours) for pair in _effects(Found(some), "poor")] == [1, 1, 1]
    some[missing].clear()
    assert _effects(Found(some), "poor") == []
