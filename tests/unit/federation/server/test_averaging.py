"""The mean of updates does not depend on the order of arrival."""

import gc
import weakref
from itertools import permutations

import pytest
import torch

from grandrounds.federation.server.means import OrderedMean
from grandrounds.protocol.tensors import apply_update, difference
from grandrounds.seeding import torch_generator

SITES = ["site-1", "site-2", "site-10"]


def update(*values, dtype=torch.float32):
    return {"w": torch.tensor(values, dtype=dtype)}


def random_update(number):
    generator = torch_generator("aggregation", number)
    return {
        "w": torch.randn(50, generator=generator) * 10.0 ** torch.randint(-4, 4, (50,), generator=generator),
        "n": torch.tensor(number),
    }


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((10.0, 20.0, 70.0), 4.7), ((1.0, 1.0, 1.0), 3.0), ((0.5, 0.5, 0.5), 3.0)],
)
def test_the_mean_is_weighted(weights, expected):
    mean = OrderedMean(SITES)
    for site, value, weight in zip(SITES, (1.0, 2.0, 6.0), weights, strict=True):
        mean.add(site, update(value), weight)
    torch.testing.assert_close(mean.close(), update(expected))


def test_the_weight_is_one_unless_given():
    mean = OrderedMean(SITES)
    for site, value in zip(SITES, (1.0, 2.0, 6.0), strict=True):
        mean.add(site, update(value))
    assert mean.close()["w"].tolist() == [3.0]


def test_every_order_of_arrival_gives_the_same_bits():
    names = ["site-1", "site-2", "site-3", "site-10"]
    updates = {name: random_update(number) for number, name in enumerate(names)}
    weights = dict(zip(names, (3.0, 0.1, 7.0, 1e-3), strict=True))

    def aggregated(order):
        mean = OrderedMean(names)
        for name in order:
            mean.add(name, updates[name], weights[name])
        return mean.close()

    results = [aggregated(order) for order in permutations(names)]
    assert all(torch.equal(result["w"], results[0]["w"]) for result in results)
    naive = [sum(weights[n] * updates[n]["w"] for n in order) for order in permutations(names)]
    assert not all(torch.equal(total, naive[0]) for total in naive), "the example must depend on the order"


@pytest.mark.parametrize("missing", SITES)
def test_a_missing_site_changes_neither_order_nor_bits(missing):
    there = [site for site in SITES if site != missing]
    results = []
    for order in (there, there[::-1]):
        mean = OrderedMean(SITES)
        mean.add(order[0], random_update(SITES.index(order[0])))
        mean.skip(missing)
        mean.add(order[1], random_update(SITES.index(order[1])))
        results.append(mean.close()["w"])
    assert torch.equal(*results)
    oracle = torch.stack([random_update(SITES.index(site))["w"] for site in there]).double().mean(dim=0)
    torch.testing.assert_close(results[0].double(), oracle)


def test_inputs_are_not_changed():
    updates = [random_update(number) for number in range(3)]
    copies = [{name: value.clone() for name, value in entry.items()} for entry in updates]
    mean = OrderedMean(SITES)
    for site, entry in zip(SITES, updates, strict=True):
        mean.add(site, entry, 2.5)
    mean.close()
    for entry, copy in zip(updates, copies, strict=True):
        assert all(torch.equal(entry[name], copy[name]) for name in entry)


def test_counters_take_the_maximum_and_stay_integers():
    mean = OrderedMean(SITES)
    for site, count in zip(SITES, (3, 9, 4), strict=True):
        mean.add(site, update(count, dtype=torch.int64), weight=count)
    result = mean.close()["w"]
    assert result.dtype == torch.int64
    assert result.tolist() == [9]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_is_kept(dtype):
    mean = OrderedMean(SITES[:2])
    mean.add("site-1", update(1.0, dtype=dtype))
    mean.add("site-2", update(2.0, dtype=dtype))
    assert mean.close()["w"].dtype == dtype


def test_half_precision_is_summed_in_single():
    # 60000 + 60000 is infinite in float16; the mean is not.
    mean = OrderedMean(SITES[:2])
    mean.add("site-1", update(60000.0, dtype=torch.float16))
    mean.add("site-2", update(60000.0, dtype=torch.float16))
    assert mean.close()["w"].tolist() == [60000.0]


def test_without_values_there_is_no_mean():
    mean = OrderedMean(SITES)
    mean.skip("site-2")
    assert mean.close() is None


def test_closing_does_not_wait_for_the_missing():
    mean = OrderedMean(SITES)
    mean.add("site-10", update(5.0))
    assert mean.close()["w"].tolist() == [5.0]


def test_skipping_a_site_that_has_answered_does_not_lose_its_update():
    mean = OrderedMean(SITES)
    mean.add("site-2", update(5.0))
    mean.skip("site-2")
    mean.skip("elsewhere")
    assert mean.close()["w"].tolist() == [5.0]


@pytest.mark.parametrize("held", [True, False])
def test_a_second_answer_is_refused(held):
    mean = OrderedMean(SITES)
    site = "site-2" if held else "site-1"
    mean.add(site, update(1.0))
    with pytest.raises(ValueError, match=f"{site} was not asked for an update, or has given one already"):
        mean.add(site, update(1.0))


def test_a_site_that_was_not_asked_is_refused():
    with pytest.raises(ValueError, match="site-7 was not asked for an update"):
        OrderedMean(SITES).add("site-7", update(1.0))


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_a_weight_that_is_not_positive_is_refused(weight):
    with pytest.raises(ValueError, match=f"the weight of site-1 must be positive, got {weight}"):
        OrderedMean(SITES).add("site-1", update(1.0), weight)


def test_updates_are_released_from_memory_once_they_are_added():
    mean = OrderedMean(SITES)
    watched = {}
    for site in ("site-2", "site-1"):
        tensor = torch.ones(3)
        watched[site] = weakref.ref(tensor)
        mean.add(site, {"w": tensor})
        del tensor
        gc.collect()
        if site == "site-2":
            assert watched["site-2"]() is not None, "held until site-1 is known"
    assert watched["site-1"]() is None
    assert watched["site-2"]() is None


def test_an_update_is_applied_in_fresh_tensors():
    state = {"w": torch.tensor([1.0]), "kept": torch.tensor([7.0])}
    moved = apply_update(state, {"w": torch.tensor([0.5])})
    assert moved["w"].tolist() == [1.5]
    assert state["w"].tolist() == [1.0]
    assert moved["kept"] is state["kept"]


def test_a_difference_leads_from_before_to_after():
    before = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    after = {"w": torch.tensor([4.0, 0.0]), "n": torch.tensor(9)}
    delta = difference(after, before)
    assert delta["w"].tolist() == [3.0, -2.0]
    assert "n" not in delta, "counters do not travel"
    moved = apply_update(before, delta)
    assert torch.equal(moved["w"], after["w"])
    assert moved["n"].item() == 3


def test_updates_that_wait_on_disk_change_no_bit(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names = [f"site-{number}" for number in range(1, 7)]
    results = []
    for in_memory in (6, 2):  # updates of 50 single and 50 half precision numbers and an integer
        mean = OrderedMean(names, held_bytes=in_memory * (200 + 100 + 8))
        for number, name in enumerate(reversed(names)):
            mean.add(name, random_update(number) | {"h": random_update(number)["w"].half()}, weight=0.1 + number)
            waiting = len(list(tmp_path.rglob("*.pt")))
            assert waiting == (max(0, number + 1 - in_memory) if name != "site-1" else 0)
        results.append(mean.close())
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name])
        assert value.dtype == results[1][name].dtype


def test_a_file_is_not_overwritten_while_its_update_waits(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mean = OrderedMean([f"site-{number}" for number in range(5)], held_bytes=0)
    for number in (1, 3, 0, 4, 2):  # 3 still waits when 4 comes, 1 no more
        mean.add(f"site-{number}", update(10.0**number))
    torch.testing.assert_close(mean.close(), update(11111 / 5))
    assert list(tmp_path.iterdir()) == []


def test_a_round_that_is_given_up_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mean = OrderedMean(SITES, held_bytes=0)
    mean.add("site-2", update(1.0))
    assert len(list(tmp_path.rglob("*.pt"))) == 1
    with pytest.warns(ResourceWarning):
        del mean
    assert list(tmp_path.iterdir()) == []
