"""Own losses and rules for updates: what is registered trains, and what does not fit is refused before a run."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import grandrounds as gr
from grandrounds.federation.server.robust import OWN_RULES, DefenceOptions, RobustMean, geometric_median
from grandrounds.methods.supervised.loss import OWN_LOSSES
from grandrounds.methods.supervised.training import TrainingOptions
from grandrounds.models.backbones.own import OWN_BACKBONES, OwnBackbone


@pytest.fixture(autouse=True)
def own_pieces(monkeypatch):
    """Each test has registries of its own."""
    for registry in (OWN_BACKBONES, OWN_LOSSES, OWN_RULES):
        monkeypatch.setattr(registry, "entries", {})


def entropy(logits, labels, weights):
    return cross_entropy(logits, labels, weights)


def median(updates, weights):
    return {name: torch.stack([one[name] for one in updates]).quantile(0.5, dim=0) for name in updates[0]}


def test_what_pytorch_and_the_package_have_keeps_the_contracts():
    gr.testing.check_loss(entropy)
    gr.testing.check_aggregator(median)
    gr.testing.check_aggregator(geometric_median)


@pytest.mark.parametrize(
    ("loss", "fault"),
    [
        (lambda logits, labels, weights: cross_entropy(logits, labels, reduction="sum"), "no mean"),
        (lambda logits, labels, weights: -cross_entropy(logits, labels), "does not fall"),
        (lambda logits, labels, weights: cross_entropy(logits, labels) * torch.nan, "finite scalar"),
        (lambda logits, labels, weights: logits.detach().sum() + 0 * logits.sum(), "does not fall"),
    ],
)
def test_a_loss_that_breaks_the_contract_is_named_with_its_fault(loss, fault):
    with pytest.raises(AssertionError, match=fault):
        gr.testing.check_loss(loss)


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        (lambda updates, weights: {"w": median(updates, weights)["w"]}, "keep all"),
        (lambda updates, weights: updates[0], "order"),
        (
            lambda updates, weights: {name: value.double() for name, value in median(updates, weights).items()},
            "another",
        ),
        (lambda updates, weights: {name: value.add_(1) for name, value in median(updates, weights).items()}, "another"),
    ],
)
def test_a_rule_that_breaks_the_contract_is_named_with_its_fault(rule, fault):
    with pytest.raises(AssertionError, match=fault):
        gr.testing.check_aggregator(rule)


@pytest.mark.parametrize(
    ("register", "piece", "message"),
    [
        (gr.register_loss("own"), lambda logits, labels: logits.mean(), "arguments logits, labels, weights"),
        (gr.register_loss("own"), lambda logits, labels, weights: None, "loss own gives NoneType"),
        (gr.register_loss("own"), lambda logits, labels, weights: logits, r"loss own gives \(4, 3\)"),
        (gr.register_loss("own"), lambda logits, labels, weights: torch.tensor(0.0), "has a gradient"),
        (gr.register_aggregator("own"), lambda updates: updates[0], "arguments updates, weights"),
        (gr.register_aggregator("own"), lambda updates, weights: None, "aggregator own must return the entries"),
        (gr.register_aggregator("own"), lambda updates, weights: {"v": updates[0]["w"]}, "aggregator own .* lacks 'w'"),
        (gr.register_backbone("own"), lambda classes: nn.Linear(2, classes), "arguments classes, channels"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_registered(register, piece, message):
    with pytest.raises(gr.ConfigurationError, match=message):
        register(piece)


def test_a_factory_that_returns_nothing_is_refused():
    with pytest.raises(gr.ConfigurationError, match=r"its factory gives NoneType; return a torch\.nn\.Module"):
        OwnBackbone("x", lambda classes, channels: None, 4, None, "scaled").build(2, 3)


def test_a_name_that_nobody_registered_is_refused_with_those_that_are():
    with pytest.raises(gr.ConfigurationError, match="loss must be null, because none is registered"):
        TrainingOptions(loss="focal")
    gr.register_loss("entropy")(entropy)
    with pytest.raises(gr.ConfigurationError, match=r"one of entropy or null, got 'focal'; .* gr\.register_loss"):
        TrainingOptions(loss="focal")
    with pytest.raises(gr.ConfigurationError, match=r"aggregator must be .* gr\.register_aggregator"):
        DefenceOptions(aggregator="middle")
    gr.register_aggregator("middle")(median)
    with pytest.raises(gr.ConfigurationError, match="aggregator=middle needs aggregation=mean, got secure"):
        DefenceOptions(aggregator="middle", aggregation="secure")


def test_the_registered_rule_makes_the_updates_one():
    gr.register_aggregator("middle")(median)
    mean = RobustMean(DefenceOptions(aggregator="middle"))
    for site, value in (("site-1", 1.0), ("site-2", 2.0), ("site-3", 1e9)):
        mean.add(site, {"w": torch.tensor([value])})
    assert mean.close() == {"w": torch.tensor([2.0])}
