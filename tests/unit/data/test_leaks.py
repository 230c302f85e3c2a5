"""What is compared between sites: of many copies of one picture the pair that the plain definition finds, in linear time."""

from itertools import combinations

import numpy as np
import pytest

from grandrounds.data import leaks
from grandrounds.data.leaks import Looked, PlacedImage, contradictions, shared_between
from grandrounds.seeding import numpy_generator


def looked(site, rows):
    """A site's copies of one picture: their splits and labels."""
    pictures = tuple(
        PlacedImage(site, row, f"{site}-{row}", split, f"patient-{site}-{row}", f"group-{site}-{row}")
        for row, (split, _) in enumerate(rows)
    )
    known = np.array([label for _, label in rows], np.int64)
    thumbs = np.zeros((len(rows), 32, 32, 3), np.uint8)
    return Looked(pictures, ("digest",) * len(rows), thumbs, tuple(map(str, known)), known, ())


def drawn_sites(seed):
    draw = numpy_generator(seed, "leaks")
    return {
        f"site-{number}": looked(
            f"site-{number}",
            [
                (split, int(draw.integers(-1, 2)))
                for split in draw.permutation(["train", "test"])[: draw.integers(1, 3)]
            ],
        )
        for number in range(int(draw.integers(1, 5)))
    }


def first_shared(sites):
    """By definition: the first pair at two sites, in two splits if there is such a pair."""
    pictures = [one for site in sites.values() for one in site.pictures]
    pairs = [(one, other) for one, other in combinations(pictures, 2) if one.site != other.site]
    return next((pair for pair in pairs if pair[0].split != pair[1].split), next(iter(pairs), None))


@pytest.mark.parametrize("seed", range(40))
def test_of_equal_pictures_the_pair_of_the_definition_is_named(seed):
    sites = drawn_sites(seed)
    messages = [message for _, check, message in shared_between(sites) if check == "shared pictures"]
    pair = first_shared(sites)
    if pair is None:
        assert messages == ["no picture is at two sites"]
    else:
        assert f"{pair[0].place} and {pair[1].place};" in messages[0]
    labels = [(site, int(label)) for site, one in sites.items() for label in one.known]
    pairs = list(combinations(labels, 2))
    differ = any(0 <= one != other >= 0 and site != its for (site, one), (its, other) in pairs)
    assert bool(list(contradictions(sites.values()))) == differ


def test_the_labels_of_a_thousand_copies_are_compared_once_for_each_pair_of_labels(monkeypatch):
    compared = []

    def pairs_of(rows, size):
        compared.append(len(list(rows)))
        return combinations(rows, size)

    monkeypatch.setattr(leaks, "permutations", pairs_of)
    monkeypatch.setattr(leaks, "combinations", pairs_of)
    sites = [looked(f"site-{number}", [("train", 1), ("train", -1)]) for number in range(1000)]
    assert not list(contradictions(sites))
    assert compared == [2]
