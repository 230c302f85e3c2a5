"""What FedIRM is compared with, on the same hospitals."""

import pytest
import torch

from grandrounds.errors import ConfigurationError

LABELLED, UNLABELLED = ["site-1", "site-2"], ["site-3", "site-4"]
SITES = LABELLED + UNLABELLED


@pytest.mark.parametrize(
    "options",
    [
        ["executor.unlabelled_objective=self_training"],
        ["executor.relation_weight=0"],
    ],
)
def test_baselines_release_no_matrix(small, go, tmp_path, options, answers, relations):
    found = go(small("controller.rounds=3", *options), tmp_path)
    assert relations(found) == {}
    assert not any("relation" in part for parts in found.summary["bytes"].values() for part in parts)
    assert all("kept" in metrics for (_, site), metrics in answers(found).items() if site in UNLABELLED)


def test_matrices_cost_bytes_that_are_counted(whole):
    """A matrix of four classes in single precision and four counts: 64 + 32 bytes."""
    sent = whole.summary["bytes"]
    assert {site: parts.get("up.relation", 0) for site, parts in sent.items()} == {
        "site-1": 4 * 96, "site-2": 4 * 96, "site-3": 0, "site-4": 0,
    }  # fmt: skip
    assert {site: parts.get("down.relation", 0) for site, parts in sent.items()} == {
        "site-1": 0, "site-2": 0, "site-3": 3 * 96, "site-4": 3 * 96,
    }  # fmt: skip


def test_one_subset_of_all_sites_without_distances_is_federated_averaging(small, go, tmp_path):
    consensus = ["controller.subsets=1", "controller.subset_size=4", "controller.distance_scale=0"]
    # One round: Adam makes much of differences in the last bits.
    once = ["controller.rounds=1", "controller.unlabelled_start=0"]
    same = [*once, "executor.relation_weight=0", "executor.teacher=ema_reset"]
    left = go(small(*consensus, *same, "executor.teacher_temperature=1", name="rscfed"), tmp_path / "a")
    right = go(small(*same, "executor.mc_dropout=none"), tmp_path / "b")
    for name, value in left.models["last"].items():
        torch.testing.assert_close(value, right.models["last"][name], rtol=1e-5, atol=1e-7)


def test_a_large_weight_of_labelled_sites_leaves_nothing_to_the_others(small, go, tmp_path):
    once = "controller.rounds=1"
    heavy = go(small(once, "controller.unlabelled_start=0", "controller.labelled_weight=1e9"), tmp_path / "a")
    alone = go(small(once, "controller.unlabelled_start=null"), tmp_path / "b")
    for name, value in alone.models["last"].items():
        torch.testing.assert_close(heavy.models["last"][name], value, rtol=1e-5, atol=1e-7)


def test_the_weight_of_labelled_sites_needs_a_weighted_mean(small, go, tmp_path):
    with pytest.raises(ConfigurationError, match="labelled_weight needs aggregation=mean, got aggregation=median"):
        go(small("controller.labelled_weight=2", "controller.aggregation=median"), tmp_path)


def test_the_consensus_reports_the_weight_of_each_site_and_is_repeatable(small, go, tmp_path, assert_same_run):
    options = ["controller.subsets=3", "controller.subset_size=2", "controller.distance_scale=10"]
    first = go(small(*options, name="rscfed"), tmp_path / "a")
    for entry in first.summary["rounds"]:
        assert len(entry["subsets"]) == 3
        for weights in entry["subsets"]:
            assert len(weights) == 2
            assert sum(weights.values()) == pytest.approx(1, abs=1e-5)
    assert_same_run(first, go(small(*options, name="rscfed"), tmp_path / "b", sites=SITES[::-1]))
