"""Sub-consensus models: distant models have lower weights, and the mean is over the drawn subsets."""

import math

import pytest
import torch
from rscfed import ConsensusMean, ConsensusOptions, distance_weights, draw_subsets, sub_consensus

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import presets_of, with_options, with_preset
from grandrounds.errors import ConfigurationError
from grandrounds.seeding import numpy_generator, torch_generator
from tests.federations import OUTSIDE

NEAR = {"w": torch.tensor([0.0, 0.0]), "statistic": torch.tensor([0.0])}
FAR = {"w": torch.tensor([3.0, 4.0]), "statistic": torch.tensor([100.0])}


def test_weights_by_hand():
    # n exp(-b d / n) with b = 2: 1 exp(-2) and 3 exp(-2 * 6 / 3).
    weights = distance_weights(torch.tensor([1.0, 6.0]), torch.tensor([1.0, 3.0]), scale=2.0)
    first, second = math.exp(-2), 3 * math.exp(-4)
    torch.testing.assert_close(weights, torch.tensor([first, second], dtype=torch.float64) / (first + second))


def test_an_extra_weight_multiplies_shares_and_leaves_distances_by_samples():
    # With factors 9 and 1 the mean of 300 and 100 images is 1/28 of the way: distances 5/28 and 135/28.
    consensus, weights = sub_consensus([NEAR, FAR], [300.0, 100.0], 10.0, ["w"], factors=[9.0, 1.0])
    near, far = 2700 * math.exp(-10 * (5 / 28) / 300), 100 * math.exp(-10 * (135 / 28) / 100)
    assert weights.tolist() == pytest.approx([near / (near + far), far / (near + far)])
    torch.testing.assert_close(consensus["w"], FAR["w"] * float(weights[1]))


def test_factors_multiply_the_weights_of_a_subset():
    options = ConsensusOptions(subsets=1, subset_size=3, distance_scale=0.0)
    mean = ConsensusMean(options, lambda: numpy_generator("weights"), {"a": 1.0, "b": 8.0, "c": 1.0}.__getitem__)
    mean.measured = ["w"]
    mean.open(["a", "b", "c"])
    for site, value in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        mean.add(site, {"w": torch.tensor([value])}, 10.0)
    torch.testing.assert_close(mean.close()["w"], torch.tensor([(1.0 + 16.0 + 3.0) / 10.0]))
    assert mean.weights == [pytest.approx({"a": 0.1, "b": 0.8, "c": 0.1})]


def test_huge_distances_leave_the_nearest_and_no_nan():
    weights = distance_weights(torch.tensor([5e6, 1e6]), torch.tensor([10.0, 10.0]), scale=1e4)
    assert weights.tolist() == [0.0, 1.0]


def test_distance_is_from_the_mean_by_samples_over_parameters_alone():
    # The mean by samples is 1/4 of the way: distances 1.25 and 3.75.
    consensus, weights = sub_consensus([NEAR, FAR], [300.0, 100.0], 10.0, ["w"], factors=[1.0, 1.0])
    near, far = 300 * math.exp(-12.5 / 300), 100 * math.exp(-37.5 / 100)
    assert weights.tolist() == pytest.approx([near / (near + far), far / (near + far)])
    torch.testing.assert_close(consensus["w"], FAR["w"] * float(weights[1]))
    torch.testing.assert_close(consensus["statistic"], FAR["statistic"] * float(weights[1]))
    assert consensus["w"].dtype == torch.float32


def test_subsets_are_drawn_without_replacement_and_in_canonical_order():
    sites = [f"site-{number}" for number in range(10, 0, -1)]
    drawn = draw_subsets(sites, 3, 5, numpy_generator("subsets"))
    assert len(drawn) == 3
    assert len(set(drawn)) > 1
    for subset in drawn:
        assert len(set(subset)) == 5
        assert list(subset) == sorted(subset, key=lambda site: int(site[5:]))
    assert draw_subsets(sites[:2], 2, 5, numpy_generator("subsets")) == (("site-9", "site-10"),) * 2


def updates(count):
    generator = torch_generator("updates")
    return {f"site-{n}": {"w": torch.randn(4, generator=generator)} for n in range(1, count + 1)}


def closed(given, order, scale=1.0):
    mean = ConsensusMean(ConsensusOptions(2, 3, scale), lambda: numpy_generator("consensus"))
    mean.measured = ["w"]
    mean.open(given)
    for site in order:
        mean.add(site, given[site], weight=10.0)
    return mean.close(), mean.weights


def test_the_consensus_is_the_mean_of_the_subsets_in_whatever_order_sites_answer():
    given = updates(5)
    model, weights = closed(given, list(given))
    by_hand = sum(weight * given[site]["w"] for of in weights for site, weight in of.items()) / 2
    torch.testing.assert_close(model["w"], by_hand)
    assert torch.equal(model["w"], closed(given, list(given)[::-1])[0]["w"])


def test_sites_that_did_not_answer_are_not_drawn():
    given = updates(5)
    _, weights = closed(given, ["site-2", "site-4"])
    assert [set(of) for of in weights] == [{"site-2", "site-4"}] * 2


def test_without_models_there_is_no_consensus():
    mean = ConsensusMean(ConsensusOptions(2, 3, 1.0), lambda: numpy_generator("none"))
    mean.open(["site-1"])
    mean.skip("site-1")
    assert mean.close() is None


def test_a_weight_that_is_not_positive_is_refused():
    mean = ConsensusMean(ConsensusOptions(1, 1, 1.0), lambda: numpy_generator("x"))
    with pytest.raises(ValueError, match="the weight of a must be positive, got 0"):
        mean.add("a", {}, 0.0)


def test_secure_sums_are_refused_because_single_updates_are_weighed():
    with pytest.raises(ConfigurationError, match="consensus"):
        with_options(load_job(OUTSIDE["rscfed"]), ["controller.aggregation=secure"]).checked()


def test_every_preset_is_a_job_that_can_be_built():
    job = load_job(OUTSIDE["rscfed"])
    for preset in presets_of(job):
        with_preset(job, preset).checked()
    assert with_preset(job, "trained").options("controller")["start_from"] == "ridge"
