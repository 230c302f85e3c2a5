"""One seed, one result: whatever the transport, and nothing beside the run is touched."""

import pytest
import torch
from nvflare.apis.dxo import from_shareable
from nvflare.fuel.utils import fobs

from grandrounds.data import site
from grandrounds.federation.engine import Site


@pytest.fixture(scope="module")
def fedperl(tiny, run, tmp_path_factory):
    """Three rounds with peers from the second on."""
    return run(tiny("fedperl", "controller.warm_up=1"), tmp_path_factory.mktemp("fedperl"))


def test_fedperl_without_peers_is_ssfl(tiny, run, tmp_path, identical, fedperl):
    alone = run(tiny("fedperl", "controller.peers=0", "controller.warm_up=1"), tmp_path / "a")
    ssfl = run(tiny("ssfl"), tmp_path / "b")
    assert identical(alone.models, ssfl.models)
    assert not identical(alone.models, fedperl.models), "with peers it is another method"


def test_pseudo_labels_matter_in_these_runs(tiny, run, tmp_path, identical, fedperl):
    """Otherwise the comparisons here would show little."""
    without = run(tiny("fedperl", "controller.warm_up=1", "executor.unsupervised_weight=0"), tmp_path)
    assert not identical(without.models, fedperl.models)


def test_two_runs_with_one_seed_are_the_same_bit_for_bit(tiny, run, tmp_path, assert_same_run, fedperl):
    assert_same_run(run(tiny("fedperl", "controller.warm_up=1"), tmp_path), fedperl)


def test_another_seed_gives_another_model(tiny, run, tmp_path, identical, fedperl):
    other = run(tiny("fedperl", "controller.warm_up=1", "controller.seed=2"), tmp_path)
    assert not identical(other.models, fedperl.models)


def test_flares_serialiser_changes_nothing(tiny, run, tmp_path, assert_same_run, fedperl, monkeypatch):
    carried = []
    original = fobs.loads
    monkeypatch.setattr(fobs, "loads", lambda data: carried.append(len(data)) or original(data))
    assert_same_run(run(tiny("fedperl", "controller.warm_up=1"), tmp_path, wire=True), fedperl)
    # Three rounds, the last scores and the test, to three sites and back.
    assert len(carried) == 2 * 3 * (3 + 2)


def test_the_order_in_which_sites_are_listed_changes_nothing(tiny, run, tmp_path, identical, fedperl):
    other = run(tiny("fedperl", "controller.warm_up=1"), tmp_path, sites=["site-3", "site-1", "site-2"])
    assert identical(other.models, fedperl.models)


def test_training_leaves_torchs_own_generator_alone(tiny, run, tmp_path):
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    run(tiny("fedperl", "controller.rounds=2", "controller.warm_up=1", "problem.dropout=0.5"), tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_dropout_does_not_depend_on_what_torch_drew_before(tiny, run, tmp_path, identical):
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        job = tiny("fedavg", "controller.rounds=1", "problem.dropout=0.5")
        models.append(run(job, tmp_path / str(seed), sites=["site-1", "site-2"]).models)
    assert identical(*models)


def test_each_image_is_decoded_once_in_a_run(tiny, run, tmp_path, monkeypatch):
    monkeypatch.setenv("GRANDROUNDS_CACHE", str(tmp_path / "cache"))
    opened = []
    original = site.open_cache

    def counting(*arguments):
        cache = original(*arguments)
        opened.append(cache.decoded)
        return cache

    monkeypatch.setattr(site, "open_cache", counting)
    job = tiny("ssfl", "controller.min_sites=1", "controller.rounds=2")
    run(job, tmp_path / "run", sites=["site-1"])
    assert sum(opened) == 120
    opened.clear()
    run(job, tmp_path / "again", sites=["site-1"])
    assert opened, "the images were opened"
    assert sum(opened) == 0, "another run of the site finds them decoded"


def test_no_party_can_change_a_tensor_of_another(tiny, run, tmp_path, identical):
    """An executor that spoils in place what it received gives the same run as one that does not."""
    job = tiny("ssfl", "controller.rounds=2")
    honest = run(job, tmp_path / "honest")
    job.client["executors"][0]["executor"]["path"] = "faulty.SpoilsWhatItGot"
    assert identical(run(job, tmp_path / "spoils").models, honest.models)


@pytest.mark.parametrize("name", ["fedavg", "fedperl"])
def test_methods_only_read_what_they_are_sent(name, tiny, run, tmp_path, monkeypatch):
    work, seen = Site.work, []

    def watched(site, task, message, server):
        parts = from_shareable(message).data
        before = {name: {entry: value.clone() for entry, value in part.data.items()} for name, part in parts.items()}
        answer = work(site, task, message, server)
        same = [torch.equal(value, parts[name].data[entry]) for name in before for entry, value in before[name].items()]
        seen.extend(same)
        return answer

    monkeypatch.setattr(Site, "work", watched)
    run(tiny(name, "controller.rounds=2"), tmp_path)
    assert seen
    assert all(seen)


@pytest.mark.parametrize("name", ["fedavg", "ssfl"])
def test_with_a_half_cosine_over_two_rounds_the_second_takes_half_the_step(name, tiny, run, tmp_path):
    def last(workspace, rounds, *options):
        plain = ("executor.algorithm=sgd", "executor.learning_rate=0.1", "executor.steps=1", *options)
        return run(tiny(name, *plain, f"controller.rounds={rounds}"), tmp_path / workspace).models["last"]

    before, constant = last("one", 1), last("two", 2)
    falling = last("falling", 2, "executor.cosine_rounds=2")
    for key in (key for key in before if key.endswith(("weight", "bias"))):
        step = constant[key] - before[key]
        torch.testing.assert_close(falling[key] - before[key], step / 2, rtol=1e-3, atol=1e-6)
