"""Rules that few sites cannot move far, against hand-computed numbers, and bounds that leave honest updates as they are."""

import math
import statistics

import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.aggregate import Demands
from grandrounds.federation.server.means import OrderedMean
from grandrounds.federation.server.robust import (
    BoundedContributions,
    DefenceOptions,
    RobustMean,
    geometric_median,
    median,
    trimmed_mean,
    update_norm,
)

SITES = [f"site-{number}" for number in range(1, 11)]


def updates(scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {site: {"w": torch.randn(4, 3, generator=generator) * scale, "b": torch.ones(2)} for site in SITES}


def aggregated(rule, sent, **options):
    mean = RobustMean(DefenceOptions(aggregation=rule, **options))
    for site, update in reversed(sent.items()):
        mean.add(site, update)
    return mean.close()


def test_the_median_of_entries_by_hand():
    values = torch.tensor([[1.0, 5.0], [2.0, -1e30], [9.0, 6.0]])
    assert median(values).tolist() == [2.0, 5.0]
    assert median(torch.tensor([[1.0], [2.0], [4.0], [100.0]])).tolist() == [3.0]
    assert median(torch.tensor([[7.0]])).tolist() == [7.0]


def test_the_trimmed_mean_by_hand():
    assert trimmed_mean(torch.tensor([[-1e9], [1.0], [2.0], [6.0], [1e9]]), 1).tolist() == [3.0]


def test_the_geometric_median_is_in_the_plane_where_the_gradient_vanishes():
    """Three corners of a triangle: Fermat's point sees every side under 120 degrees."""
    corners = [(0.0, 0.0), (4.0, 0.0), (1.0, 3.0)]
    found = geometric_median([{"w": torch.tensor(corner)} for corner in corners], [1.0] * 3)["w"].double()
    unit = [
        (torch.tensor(corner).double() - found) / (torch.tensor(corner).double() - found).norm() for corner in corners
    ]
    assert float(torch.stack(unit).sum(dim=0).norm()) < 1e-4
    for first, second in ((0, 1), (1, 2), (2, 0)):
        assert math.degrees(math.acos(float(unit[first] @ unit[second]))) == pytest.approx(120, abs=0.05)


def test_weights_move_the_geometric_median():
    sent = [{"w": torch.tensor([0.0])}, {"w": torch.tensor([1.0])}]
    assert float(geometric_median(sent, [1.0, 3.0])["w"]) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "geometric_median"])
@pytest.mark.parametrize("attackers", [1, 2, 4])
def test_a_minority_does_not_move_the_aggregate_beyond_the_honest_updates(rule, attackers):
    honest = updates()
    sent = dict(honest)
    for site in SITES[:attackers]:
        sent[site] = {name: torch.full_like(value, 1e6) for name, value in honest[site].items()}
    made = aggregated(rule, sent, **({"trimmed_fraction": 0.4} if rule == "trimmed_mean" else {}))
    largest = max(update_norm(honest[site]) for site in SITES[attackers:])
    assert update_norm(made) < 2 * largest
    plain = OrderedMean(SITES)
    for site, update in sent.items():
        plain.add(site, update)
    assert update_norm(plain.close()) > 1e4


@pytest.mark.parametrize("sites", [3, 4])
def test_the_trimmed_mean_of_few_sites_leaves_one_out_at_each_end(sites):
    sent = {site: {"w": torch.tensor([1.0])} for site in SITES[: sites - 1]} | {"site-9": {"w": torch.tensor([-3.0])}}
    assert aggregated("trimmed_mean", sent)["w"].tolist() == [1.0]
    assert aggregated("trimmed_mean", sent, trimmed_fraction=0.0)["w"].tolist() != [1.0]
    assert aggregated("trimmed_mean", dict(list(sent.items())[-2:]))["w"].tolist() == [-1.0]


def test_a_claim_of_samples_does_not_make_one_update_the_geometric_median():
    values = dict(zip(SITES, [1.0, 1.1, 0.9, 1.0, -3.0], strict=False))
    mean = RobustMean(DefenceOptions(aggregation="geometric_median"))
    for site, value in values.items():
        mean.add(site, {"w": torch.tensor([value])}, 100.0 if value < 0 else 10.0)
    assert float(mean.close()["w"]) == pytest.approx(1.0, abs=0.05)


def test_the_aggregate_does_not_depend_on_the_order_of_arrival():
    sent = updates()
    forth, back = aggregated("geometric_median", sent), aggregated("geometric_median", dict(reversed(sent.items())))
    assert all(torch.equal(forth[name], back[name]) for name in forth)


def bounded_rounds(rounds, **options):
    """Means over rounds as the controller makes them, and who was bounded in each."""
    mean, means, notes = BoundedContributions(OrderedMean(), DefenceOptions(**options)), [], []
    for sent, weights in rounds:
        mean.open(SITES)
        for site, update in sent.items():
            mean.add(site, update, weights.get(site, 1.0))
        means.append(mean.close())
        notes.append(mean.bounded)
    return means, notes


def test_honest_updates_keep_their_bits():
    rounds = [(updates(0.7**number, number), {}) for number in range(5)]
    bounded, notes = bounded_rounds(rounds)
    free, _ = bounded_rounds(rounds, norm_multiple=None, weight_multiple=None)
    assert notes == [{}] * 5
    for ours, theirs in zip(bounded, free, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_site_that_knows_the_bound_moves_the_mean_no_further_than_three_honest_ones():
    rounds = [(updates(seed=number), {}) for number in range(2)]
    rounds[1][0]["site-3"] = {"w": torch.full((4, 3), 1e6), "b": torch.zeros(2)}
    (_, mean), (_, notes) = bounded_rounds(rounds)
    without = [update for site, update in rounds[1][0].items() if site != "site-3"]
    moved = {name: 10 * mean[name] - sum(update[name] for update in without) for name in mean}
    usual = statistics.median(update_norm(update) for update in updates(seed=0).values())
    assert notes.keys() == {"site-3"}
    assert update_norm(moved) == pytest.approx(3 * usual, rel=1e-3)


@pytest.mark.parametrize("number", [0, 2], ids=["in the first round", "in a later round"])
def test_an_enormous_update_is_shortened_and_named(number):
    rounds = [(updates(seed=n), {}) for n in range(3)]
    rounds[number][0]["site-3"] = {"w": torch.full((4, 3), 3.4e38), "b": torch.full((2,), -3.4e38)}
    means, notes = bounded_rounds(rounds)
    assert [set(found) for found in notes] == [{"site-3"} if n == number else set() for n in range(3)]
    assert notes[number]["site-3"]["factor"] < 1e-37
    usual = sorted(update_norm(update) for update in updates(seed=number).values())[5]
    assert update_norm(means[number]) < 3 * usual


def test_updates_of_the_first_round_wait_on_disk_above_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    plain, mean, sent = OrderedMean(SITES), BoundedContributions(OrderedMean(), DefenceOptions(), 200), updates()
    mean.open(SITES)
    for site, update in sent.items():
        mean.add(site, update)
        plain.add(site, update)
    assert len(list(tmp_path.glob("*/*.pt"))) == len(sent) - 3
    found, expected = mean.close(), plain.close()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not list(tmp_path.glob("*/*.pt"))


def test_a_claim_of_many_samples_is_capped():
    sent = {site: {"w": torch.tensor([1.0])} for site in SITES} | {"site-3": {"w": torch.tensor([-2.0])}}
    weights = {site: 100.0 for site in SITES} | {"site-3": 1e9}
    (mean,), (notes,) = bounded_rounds([(sent, weights)])
    assert notes == {"site-3": {"weight": 1e9, "weight_used": 1000.0}}
    assert float(mean["w"]) == pytest.approx((900 - 2000) / 1900)


def test_a_fixed_bound_holds_beside_the_multiple():
    sent = {site: {"w": torch.tensor([3.0, 4.0])} for site in SITES}
    (mean,), (notes,) = bounded_rounds([(sent, {})], max_norm=1.0)
    torch.testing.assert_close(mean["w"], torch.tensor([0.6, 0.8]))
    assert notes["site-10"] == {"norm": 5.0, "factor": 0.2}


def test_the_bounds_go_on_after_a_restart():
    before, after = (BoundedContributions(OrderedMean(), DefenceOptions()) for _ in range(2))
    before.open(SITES)
    for site, update in updates().items():
        before.add(site, update)
    before.close()
    after.load_state_dict(before.state_dict())
    after.open(["site-1"])
    after.add("site-1", {"w": torch.full((4, 3), 1e6)})
    assert update_norm(after.close()) < 100


class Remembering(OrderedMean):
    """A mean that refuses, notes something and keeps it."""

    told = ""

    def require_possible(self, demands):
        raise ConfigurationError(f"in {demands.precision}")

    def notes(self):
        return {"noted": self.told}

    def state_dict(self):
        return {"told": self.told}

    def load_state_dict(self, state):
        self.told = state["told"]


def test_bounds_leave_an_own_mean_all_that_it_does():
    before, after = (BoundedContributions(Remembering(), DefenceOptions()) for _ in range(2))
    before._inner.told = "w"
    after.load_state_dict(before.state_dict())
    assert after.notes() == {"noted": "w"}
    with pytest.raises(ConfigurationError, match="in float32"):
        before.require_possible(Demands("float32"))


def test_options_that_leave_nothing_are_refused():
    with pytest.raises(ConfigurationError, match="trimmed_fraction"):
        DefenceOptions(aggregation="trimmed_mean", trimmed_fraction=0.5)


HOSTILE = {"w": torch.full((4, 3), 1e30), "b": torch.zeros(2)}


def pair(number, hostile=False):
    sent = updates(seed=number)
    return {"site-1": sent["site-1"], "site-2": HOSTILE if hostile else sent["site-2"]}


def test_with_two_sites_the_bound_is_not_the_hostile_ones_to_choose():
    """The median of two norms was their mean: 1e30 / 2, three times of which bounds nothing."""
    rounds = [(pair(0), {}), (pair(1, hostile=True), {})]
    (_, mean), notes = bounded_rounds(rounds)
    own = update_norm(pair(0)["site-2"])
    assert set(notes[1]) == {"site-2"}
    assert notes[1]["site-2"]["factor"] == pytest.approx(3 * own / update_norm(HOSTILE), rel=1e-4)
    assert update_norm(mean) < 3 * own + update_norm(pair(1)["site-1"])


@pytest.mark.parametrize("max_norm", [None, 2.0])
def test_without_any_history_the_servers_bound_holds_and_else_the_record_says_void(max_norm):
    mean = BoundedContributions(OrderedMean(), DefenceOptions(max_norm=max_norm))
    mean.open(SITES)
    for site, update in pair(0, hostile=True).items():
        mean.add(site, update, 50.0)
    update_norm(mean.close())
    void = ["weight"] if max_norm else ["norm", "weight"]
    assert mean.notes()["bounds_void"] == {"site-1": void, "site-2": void}
    assert ("site-2" in mean.bounded) == bool(max_norm)


def test_a_median_of_zeros_bounds_by_a_sites_own_history():
    zero = {name: torch.zeros_like(value) for name, value in HOSTILE.items()}
    first = {site: updates()[site] for site in SITES[:5]}
    idle = {site: zero for site in SITES[:3]}
    mean = BoundedContributions(OrderedMean(), DefenceOptions())
    for sent in (first, *[first | idle] * 4, first | idle | {"site-5": HOSTILE}):
        mean.open(SITES)
        for site, update in sent.items():
            mean.add(site, update)
        aggregate = mean.close()
    assert set(mean.bounded) == {"site-5"}
    assert update_norm(aggregate) < 3 * update_norm(first["site-5"])
    assert mean.free_riders == {**dict.fromkeys(SITES[:3], "zero"), "site-4": "as site-4"}


def test_a_claim_of_samples_of_one_of_two_is_bounded_by_its_own_earlier_ones():
    rounds = [(pair(n), {"site-1": 100.0, "site-2": 1e9 if n else 100.0}) for n in range(2)]
    _, notes = bounded_rounds(rounds)
    assert notes[1]["site-2"] == {"weight": 1e9, "weight_used": 1000.0}


def test_recycled_updates_are_named_and_the_history_survives():
    mean, sent = BoundedContributions(OrderedMean(), DefenceOptions()), updates()
    mean.open(SITES)
    for site, update in sent.items():
        mean.add(site, update)
    mean.close()
    again = BoundedContributions(OrderedMean(), DefenceOptions())
    again.load_state_dict(mean.state_dict())
    again.open(SITES)
    for site, update in (updates(seed=1) | {"site-3": sent["site-7"], "site-4": sent["site-4"]}).items():
        again.add(site, update)
    again.close()
    assert again.notes() == {"free_riders": {"site-3": "as site-7", "site-4": "as site-4"}}


def test_updates_of_one_norm_are_told_apart():
    update = torch.arange(1.0, 10_001.0)
    mean = BoundedContributions(OrderedMean(), DefenceOptions())
    mean.open(SITES)
    for site, sent in {"site-1": update, "site-2": -update, "site-3": update.clone()}.items():
        mean.add(site, {"w": sent})
    mean.close()
    assert mean.free_riders == {"site-3": "as site-1"}


@pytest.mark.parametrize("number", [1, 3])
def test_the_geometric_median_of_equal_updates_is_that_update(number):
    torch.testing.assert_close(
        geometric_median([{"w": torch.tensor([1.5])}] * number, [2.0] * number)["w"], torch.tensor([1.5])
    )
