"""Pairs of re-runs that are kept are taken over by a measurement with the same choices alone."""

from argparse import Namespace

import numpy as np

from benchmarks.null import run as null


def test_only_pairs_of_the_same_choices_are_taken_over(tmp_path, monkeypatch):
    made, generator = [], np.random.default_rng(1)

    def pair(folder, pair, division):
        made.append((pair, division))
        return [dict(zip(null.SCORES, generator.uniform(size=2).tolist(), strict=True)) for side in range(2)]

    monkeypatch.setattr(null, "_pair", pair)
    options = Namespace(quick=True, workspace=tmp_path / "new")
    first = null.measured(options)
    assert null.measured(options) == first
    assert made == [(pair, division) for pair in range(2) for division in range(null.DIVISIONS)]
    for name, value in {"OPTIONS": (), "IMAGES": 2 * null.IMAGES}.items():
        made.clear()
        monkeypatch.setattr(null, name, value)
        null.measured(options)
        assert len(made) == 2 * null.DIVISIONS
