"""Counts, sums of products and scores as numbers of a secure sum."""

import pytest
import torch

from grandrounds.privacy.secure_sums.numbers import add
from grandrounds.privacy.secure_sums.opening import opened_numbers
from grandrounds.privacy.secure_sums.summands import SUMMANDS, SumTerms, summed_words
from grandrounds.protocol.messages import ReleaseKind

KIND = ReleaseKind.SUFFICIENT_STATISTICS
VALUES = {"weight": 40.0, "largest_norm": 4.0}


def opened(parts, terms, kind=KIND):
    """The sum of tensors of several sites, each with its number of images."""
    words = [summed_words({"r": (kind, tensors)}, samples, terms)[0] for tensors, samples in parts]
    total = words[0]
    for one in words[1:]:
        total = add(total, one)
    return opened_numbers(total, {"r": kind}, len(parts), terms)[0]["r"]


def test_counts_are_exact_and_come_with_the_number_of_images():
    terms = SumTerms(3, values=VALUES)
    sites = [({"class_counts": torch.tensor([5, 0]), "support": torch.tensor([4, 0])}, 5)] * 2
    found = opened([*sites, ({"class_counts": torch.tensor([1, 7]), "support": torch.tensor([1, 6])}, 8)], terms)
    assert {name: value.tolist() for name, value in found.items()} == {
        "class_counts": [11.0, 7.0], "support": [9.0, 6.0], "images": [18.0], "sites": [3.0],
    }  # fmt: skip


def test_a_site_counts_for_as_many_images_as_the_job_allows():
    terms = SumTerms(3, job={"most_samples": 10}, values=VALUES)
    many = {"class_counts": torch.tensor([30, 10]), "products": torch.tensor([8.0, 4.0]).double()}
    few = {"class_counts": torch.tensor([3, 1]), "products": torch.tensor([1.0, 0.5]).double()}
    found = opened([(many, 40), (few, 4), (few, 4)], terms)
    assert found["class_counts"].tolist() == pytest.approx([7.5 + 6, 2.5 + 2])
    assert found["products"].tolist() == pytest.approx([2 + 2, 1 + 1])
    assert found["images"].tolist() == pytest.approx([18.0])


@pytest.mark.parametrize(("name", "bound"), [("products", 16 * 40), ("targets", 4 * 40), ("losses", 36.0437e9)])
def test_sums_have_the_bound_of_images_of_the_largest_norm(name, bound):
    encoding = SUMMANDS[KIND].encoding(name, SumTerms(3, values=VALUES))
    assert encoding.bits == 64
    assert encoding.bound == pytest.approx(bound, rel=1e-4)


def test_a_server_chooses_no_rows_of_relation_matrices_by_their_patients():
    """Between two thresholds would be the row of one site, and how many patients it has."""
    sites = [
        ({"matrix": torch.tensor([[share, 1 - share], [0.5, 0.5]]), "support": torch.tensor([patients, -1])}, 1)
        for share, patients in ((0.9, 12), (0.8, 30), (0.7, 50))
    ]
    for least in (0, 13, 31):
        terms = SumTerms(3, values={"relation_support": least})
        found = opened(sites, terms, ReleaseKind.CLASS_STATISTICS)
        assert found["support"].tolist() == [3.0, 0.0]
        assert found["matrix"][0].tolist() == pytest.approx([2.4, 0.6])


def test_scores_of_a_billion_images_fit():
    terms = SumTerms(100)
    table = {"totals": torch.tensor([1e9, -36.0e9], dtype=torch.float64), "images": torch.tensor([10**9])}
    found = opened([(table, 10)] * 2, terms, ReleaseKind.SCORES)
    assert found["totals"].tolist() == pytest.approx([2e9, -72e9], abs=1e-3)
    assert found["images"].tolist() == [2e9]
