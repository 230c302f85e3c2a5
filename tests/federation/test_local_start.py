"""Sites that train alone start from what federated runs start from, trained weights included."""

import pytest
import torch

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.server.record import read_events
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec

SITES = ["site-1", "site-2", "site-3"]


@pytest.fixture
def weights(tmp_path):
    """A file of weights that no seed gives."""
    path = tmp_path / "start.pt"
    torch.save(build_model(ModelSpec("small", classes=4), seed=99).state_dict(), path)
    return path


def test_trained_weights_reach_sites_that_train_alone_once(tiny, run, weights, tmp_path):
    options = ["executor.learning_rate=1e-12", "controller.rounds=3", "executor.steps=1"]
    found = run(tiny("local", *options, f"problem.weights={weights}", "problem.intensities=scaled"), tmp_path / "run")
    wanted = torch.load(weights, weights_only=True)
    for site in SITES:
        (path,) = sorted((found.record.parent / site / "state").glob("round_00003.pt"))
        kept = torch.load(path, weights_only=True)["content"]["model"]
        assert torch.allclose(kept["encoder.0.weight"], wanted["encoder.0.weight"], atol=1e-6)
    size = sum(tensor.numel() * tensor.element_size() for tensor in wanted.values())
    assert found.summary["bytes"] == {site: {"down.global": size} for site in SITES}, "in the first round only"


def test_without_trained_weights_nothing_travels(tiny, run, tmp_path):
    assert run(tiny("local"), tmp_path).summary["bytes"] == {}


def test_weights_that_cannot_be_read_stop_a_local_run(tiny, run, tmp_path):
    with pytest.raises(GrandRoundsError, match=r"there is no file /nonexistent\.pt"):
        run(tiny("local", "problem.weights=/nonexistent.pt"), tmp_path)


def test_a_site_that_has_not_trained_scores_and_tests_nothing(tiny, run, tmp_path):
    found = run(tiny("local", "controller.sites_per_round=2", "controller.rounds=2"), tmp_path)
    first = found.summary["rounds"][0]["asked"]
    scored = {
        event["site"]
        for event in read_events(found.results)
        if event["event"] == "answer" and event["round"] == 2 and "validation.n" in event["metrics"]
    }
    assert scored == set(first)
    trained = {site for entry in found.summary["rounds"] for site in entry["asked"]}
    assert {site for site, tested in found.summary["records"].items() if "own" in tested} == trained


@pytest.mark.parametrize("job", ["fedperl", "fedirm"])
def test_a_method_of_a_shared_model_refuses_own_models(job):
    with pytest.raises(ConfigurationError, match=r"model .*got 'own'"):
        with_options(load_job(job), ["executor.model=own"]).checked()
