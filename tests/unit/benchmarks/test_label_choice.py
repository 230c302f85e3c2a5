"""Shares from the sum of the sites' counts draw as many images as are asked for, of the classes that lack labels."""

import numpy as np
import pytest

from benchmarks.label_choice.choice import drawn, evened
from benchmarks.label_choice.run import PENALTY, Head
from grandrounds.evaluation.label_choice import meant_for
from grandrounds.models.closed_form.solve import solve
from grandrounds.models.closed_form.sums import class_weights, sums_of

LABELLED = np.array([9, 0, 4, 2])


@pytest.fixture(scope="module")
def sites():
    generator = np.random.default_rng(3)
    return [meant_for(generator.dirichlet([0.5] * 4, number), LABELLED) for number in (30, 200, 77)]


@pytest.mark.parametrize("budget", [1, 20, 100, 250, 307, 500])
def test_the_sites_draw_so_many_images_together_and_no_class_is_left_behind(sites, budget):
    available = np.sum([np.bincount(meant, minlength=4) for meant in sites], axis=0)
    wanted = evened(available, LABELLED, budget)
    assert wanted.sum() == pytest.approx(min(budget, 307))
    levels = (LABELLED + wanted)[(wanted > 1e-9) & (wanted < available - 1e-9)]
    assert np.ptp(levels) < 1e-6 if len(levels) else budget >= 307
    assert all(LABELLED[wanted <= 1e-9] >= levels.max(initial=0) - 1e-6)
    shares = wanted / available
    chosen = [drawn(meant, shares, np.random.default_rng(site)) for site, meant in enumerate(sites)]
    for meant, rows in zip(sites, chosen, strict=True):
        assert len(set(rows.tolist())) == len(rows)
        numbers = np.bincount(meant[rows], minlength=4)
        assert np.abs(numbers - shares * np.bincount(meant, minlength=4)).max() <= 0.5
    assert abs(sum(map(len, chosen)) - min(budget, 307)) <= 4 * len(sites) / 2  # each site rounds once a class


def test_a_class_that_lacks_labels_is_suspected_sooner():
    unsure = np.array([[0.5, 0.3, 0.1, 0.1]])
    assert meant_for(unsure, LABELLED).tolist() == [1]
    assert meant_for(unsure, np.zeros(4, int)).tolist() == [0]


def test_the_head_of_inner_products_is_that_of_the_sums():
    import torch

    generator = np.random.default_rng(5)
    labels = generator.integers(0, 3, 40)
    features = generator.normal(size=(40, 6)) + labels[:, None]

    class Division:
        classes = ("a", "b", "c")

    Division.labels, Division.features = labels, features.astype(np.float64)
    weights = class_weights(torch.bincount(torch.from_numpy(labels), minlength=3), 1.0)[labels]
    answers = torch.eye(3)[labels]
    solved = solve(sums_of([(torch.from_numpy(features), answers, weights)], 6, 3), PENALTY)
    scores = features @ solved[:-1].numpy() + solved[-1].numpy()
    odds = np.exp(8 * scores)
    found = Head(Division, np.arange(40))(features)
    np.testing.assert_allclose(found, odds / odds.sum(axis=1, keepdims=True), rtol=1e-8)
