"""Noise and its norm are those of what is trained: frozen layers get none."""

import pytest

from grandrounds.models.registry import build_model
from grandrounds.privacy.mechanisms import dp_sgd, gaussian
from grandrounds.protocol.problem import ModelSpec

SITES = ["site-1", "site-2"]
ONE_ROUND = ["controller.rounds=1", "controller.min_sites=1", "controller.validate_every=0"]
CASES = [("all", 0), ("from:2", 0), ("from:2", 2), ("head", 2)]
HEADS = [*((*case, "linear") for case in CASES), ("from:2", 0, "depths"), ("head", 2, "depths")]


def trained(trainable: str, head: str) -> int:
    """The number of trained parameters."""
    network = build_model(ModelSpec("compact", classes=4, trainable=trainable, head=head), seed=1)
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.fixture
def noised(monkeypatch):
    """The number of entries of each tensor that noise is added to."""
    found, original = [], gaussian.with_noise

    def counting(value, *arguments):
        found.append(value.numel())
        return original(value, *arguments)

    monkeypatch.setattr(gaussian, "with_noise", counting)
    monkeypatch.setattr(dp_sgd, "with_noise", counting)
    return found


@pytest.mark.parametrize(("trainable", "views", "head"), HEADS)
def test_a_sites_gate_adds_noise_to_trained_entries_alone(
    tiny, run, tmp_path, install, policy_of, noised, trainable, views, head
):
    install(tmp_path / "flare" / "site-1" / "local", policy_of())
    options = [f"problem.trainable={trainable}", f"problem.head={head}", f"executor.feature_cache={views}"]
    found = run(tiny("fedavg", *ONE_ROUND, "problem.backbone=compact", *options), tmp_path, sites=SITES)
    assert found.summary["rounds"][0]["answered"] == SITES
    assert sum(noised) == trained(trainable, head)


@pytest.mark.parametrize(("trainable", "views", "head"), HEADS[1:])
def test_private_gradients_are_of_trained_entries_alone(tiny, run, tmp_path, noised, trainable, views, head):
    options = [
        f"problem.trainable={trainable}",
        f"problem.head={head}",
        f"executor.feature_cache={views}",
        "executor.record_noise_multiplier=2",
    ]
    norm = ["problem.norm=group", "executor.class_weights=none"]
    found = run(tiny("fedavg", *ONE_ROUND, "problem.backbone=compact", *norm, *options), tmp_path, sites=SITES)
    assert found.summary["rounds"][0]["answered"] == SITES
    steps = 2
    assert sum(noised) == len(SITES) * steps * trained(trainable, head)
