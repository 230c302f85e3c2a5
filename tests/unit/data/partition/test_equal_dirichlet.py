"""Sites have the same size to the image, no image is lost or doubled, and classes differ as a Dirichlet draw does."""

from collections import Counter

import numpy as np
import pytest

from grandrounds.data.manifest import Record, write_manifest
from grandrounds.data.partition.divide import equal_dirichlet, equal_dirichlet_counts
from grandrounds.errors import DataError
from grandrounds.seeding import numpy_generator

# Matek-19 in thirteen classes: training part of 80 percent, near enough.
BLOOD_CELLS = [63, 339, 62, 2614, 56, 34, 12, 87, 6787, 1452, 3150, 9, 12]


@pytest.mark.parametrize("alpha", [0.001, 0.1, 0.5, 10.0])
def test_both_margins_are_exact_for_every_seed(alpha):
    for seed in range(25 if alpha != 0.5 else 100):
        counts = equal_dirichlet_counts(BLOOD_CELLS, 4, alpha, numpy_generator(seed))
        assert (counts >= 0).all()
        assert counts.sum(axis=1).tolist() == BLOOD_CELLS
        total = sum(BLOOD_CELLS)
        assert counts.sum(axis=0).tolist() == [total // 4 + (site < total % 4) for site in range(4)]


@pytest.mark.parametrize("scalings", [0, 1])
def test_the_margins_are_exact_even_if_scaling_does_not_reach_them(monkeypatch, scalings):
    monkeypatch.setattr("grandrounds.data.partition.divide.SCALINGS", scalings)
    for seed in range(20):
        counts = equal_dirichlet_counts([40, 25, 15], 4, 0.1, numpy_generator(seed))
        assert (counts >= 0).all()
        assert counts.sum(axis=1).tolist() == [40, 25, 15]
        assert counts.sum(axis=0).tolist() == [20] * 4


def test_sizes_that_do_not_divide_differ_by_one():
    counts = equal_dirichlet_counts([7, 4], 3, 0.5, numpy_generator(1))
    assert counts.sum(axis=0).tolist() == [4, 4, 3]


def test_edge_cases_of_counts_and_sites_are_met():
    assert equal_dirichlet_counts([0, 5], 5, 0.5, numpy_generator(1)).tolist() == [[0] * 5, [1] * 5]
    assert equal_dirichlet_counts([3, 2], 1, 0.5, numpy_generator(1)).tolist() == [[3], [2]]
    assert equal_dirichlet_counts([1, 1], 4, 0.5, numpy_generator(1)).sum(axis=0).tolist() == [1, 1, 0, 0]


def test_a_draw_is_scaled_to_the_margins_that_can_be_computed_by_hand():
    """With two classes of 50 and two sites of 50, scaling q1 and q2 gives a share with odds sqrt(odds1 / odds2)."""
    shares = numpy_generator(3).dirichlet([0.5, 0.5], size=2)
    odds = np.sqrt((shares[0, 0] / shares[0, 1]) / (shares[1, 0] / shares[1, 1]))
    counts = equal_dirichlet_counts([50, 50], 2, 0.5, numpy_generator(3))
    assert abs(counts[0, 0] - 50 * odds / (1 + odds)) <= 0.5 + 1e-6
    assert counts.tolist() == [[counts[0, 0], 50 - counts[0, 0]], [50 - counts[0, 0], counts[0, 0]]]


def test_a_small_concentration_makes_sites_differ_and_a_large_one_makes_them_alike():
    def spread(alpha):
        draws = [equal_dirichlet_counts([300] * 6, 4, alpha, numpy_generator(seed)) for seed in range(20)]
        return np.mean([counts.std(axis=1) for counts in draws])

    assert spread(1e5) < 3
    assert 3 < spread(10.0) < spread(0.5) < spread(0.05)


def test_rounding_takes_the_nearest_numbers():
    """A flat draw of 10 into 4 gives 2.5 each; with margins of five every cell is 2 or 3."""
    counts = equal_dirichlet_counts([10, 10], 4, 1e9, numpy_generator(1))
    assert set(counts.flatten().tolist()) == {2, 3}
    assert set(equal_dirichlet_counts([10] * 3, 4, 1e9, numpy_generator(1)).flatten().tolist()) == {2, 3}


def records_of(sizes):
    return [Record(f"{label}-{i}.png", f"class-{label}", patient="") for label, n in enumerate(sizes) for i in range(n)]


def test_every_image_is_at_one_site_and_the_counts_are_those_of_the_draw():
    records = records_of([40, 13, 7, 1])
    sites = equal_dirichlet(records, 4, 0.5, numpy_generator(1))
    assert list(sites) == ["site-1", "site-2", "site-3", "site-4"]
    assert Counter(r for own in sites.values() for r in own) == Counter(records)
    assert [len(own) for own in sites.values()] == [16, 15, 15, 15]
    counts = equal_dirichlet_counts([40, 13, 7, 1], 4, 0.5, numpy_generator(1))
    for site, own in enumerate(sites.values()):
        assert [sum(r.label == f"class-{c}" for r in own) for c in range(4)] == counts[:, site].tolist()
        place = {record: index for index, record in enumerate(records)}
        assert [place[r] for r in own] == sorted(place[r] for r in own)


def test_images_of_a_class_are_shuffled_before_they_are_divided():
    own = equal_dirichlet(records_of([40, 40]), 2, 100.0, numpy_generator(1))["site-1"]
    assert [r.image for r in own] != [r.image for r in records_of([40, 40])][: len(own)]
    first = [r.image for r in own if r.label == "class-0"]
    assert first != [f"0-{i}.png" for i in range(len(first))]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    def digests(seed):
        sites = equal_dirichlet(records_of([30, 20, 10]), 3, 0.5, numpy_generator(seed))
        return [write_manifest(own, tmp_path / f"{site}.csv") for site, own in sites.items()]

    assert digests(1) == digests(1)
    assert digests(1) != digests(2)


def test_what_cannot_be_divided_exactly_is_refused():
    generator = numpy_generator(1)
    with pytest.raises(DataError, match="2 images cannot be divided between 3 sites; ask for fewer sites"):
        equal_dirichlet(records_of([2]), 3, 0.5, generator)
    with pytest.raises(DataError, match="image 'b' has no label"):
        equal_dirichlet([Record("a", "x"), Record("b")], 2, 0.5, generator)
    of_one = [Record("a", "x", patient="p"), Record("b", "x"), Record("c", "x", patient="p")]
    with pytest.raises(DataError, match=r"images 'a' and 'c' are of one patient or lesion.*use the dirichlet scheme"):
        equal_dirichlet(of_one, 2, 0.5, generator)
