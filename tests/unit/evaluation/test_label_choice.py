"""Images to label next: what a site counts, where a sum is cut, and that sites together take what one place would take."""

import numpy as np
import pytest

from grandrounds.evaluation.counts import MARGIN_BINS
from grandrounds.evaluation.label_choice import Cuts, Ranked, chosen, gaps_of, meant_for, ranked
from grandrounds.evaluation.label_quotas import cuts_of, quotas

CLASSES, LABELLED = 3, np.array([9, 3, 0])


def drawn(seed, sites=4, images=60):
    """Probabilities of the images of each site, whose margins differ by more than a bin of rounding."""
    generator = np.random.default_rng(seed)
    return [generator.dirichlet(np.ones(CLASSES), images) for _ in range(sites)]


def chosen_across(places, budget, minimum=1):
    """Site and row of the images that sites choose, and the patients behind each count, of one image a patient."""
    meant = [meant_for(own, LABELLED) for own in places]
    patients = [[str(row) for row in range(len(own))] for own in places]
    each = zip(meant, places, patients, strict=True)
    images = [ranked(one, gaps_of(own), people, minimum, CLASSES)[0] for one, own, people in each]
    cuts = cuts_of(np.sum([one.table(CLASSES) for one in images], axis=0), LABELLED, budget)
    return {(site, int(row)) for site, one in enumerate(images) for row in chosen(one, cuts)}, images


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("budget", [1, 7, 40, 1000])
def test_sites_choose_what_one_place_with_all_scores_would(seed, budget):
    places = drawn(seed)
    whole = np.concatenate(places)
    meant, margins = meant_for(whole, LABELLED), gaps_of(whole)
    wanted = quotas(np.bincount(meant, minlength=CLASSES), LABELLED, budget)
    order = np.argsort(margins)
    expected = {divmod(int(row), 60) for name in range(CLASSES) for row in order[meant[order] == name][: wanted[name]]}
    assert chosen_across(places, budget)[0] == expected
    assert len(expected) == min(budget, 240)


@pytest.mark.parametrize("budget", [7, 40, 200])
def test_counts_of_enough_patients_yield_the_number_but_for_roundings(budget):
    found, images = chosen_across(drawn(4), budget, minimum=5)
    assert abs(len(found) - budget) <= 2
    counts = np.concatenate([one.table(CLASSES)[one.table(CLASSES) > 0] for one in images])
    assert counts.min() >= 5


def test_the_classes_with_fewest_labels_grow_to_one_level():
    assert quotas(np.array([50, 50, 1]), np.array([6, 2, 0]), 10).tolist() == [3, 6, 1]
    assert quotas(np.array([2, 0, 3]), np.array([0, 0, 9]), 100).tolist() == [2, 0, 3]


def test_images_of_one_patient_are_one_behind_a_count():
    meant, margins = np.zeros(5, np.int64), np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    images, support = ranked(meant, margins, list("aabcd"), 2, 1)
    medians = [int(0.2 * MARGIN_BINS)] * 3 + [int(0.4 * MARGIN_BINS)] * 2
    assert images.bins.tolist() == medians
    assert support.tolist() == [4]
    images, support = ranked(meant, margins, ["a"] * 5, 2, 1)
    assert images.bins.tolist() == [MARGIN_BINS] * 5
    assert support.tolist() == [0]
    assert not images.table(1).any()


def test_a_site_without_unlabelled_images_counts_and_chooses_none():
    images, support = ranked(np.zeros(0, np.int64), np.zeros(0), [], 10, 2)
    assert not images.table(2).any()
    assert support.tolist() == [0, 0]
    assert chosen(images, Cuts(np.array([0, 0]), np.array([1.0, 1.0]))).size == 0


def test_images_that_are_not_counted_are_never_chosen():
    own = Ranked(np.zeros(3, np.int64), np.array([2, MARGIN_BINS, MARGIN_BINS]), np.array([0.5, 0.1, 0.2]))
    assert chosen(own, Cuts(np.array([MARGIN_BINS]), np.array([1.0]))).tolist() == [0]


def test_of_a_shared_bin_each_site_takes_its_share_with_the_smallest_margins_first():
    table = np.zeros((MARGIN_BINS, 1), np.int64)
    table[[2, 5]] = [[3], [8]]
    cuts = cuts_of(table, np.array([0]), 7)  # 3 of bin 2, and half of bin 5
    own = Ranked(np.zeros(5, np.int64), np.array([2, 5, 5, 5, 5]), np.array([0.5, 0.9, 0.6, 0.8, 0.7]))
    assert chosen(own, cuts).tolist() == [0, 2, 4]
