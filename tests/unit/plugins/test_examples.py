"""The examples: FedALA and Cohen's kappa against numbers that were computed by hand, and how a method learns its weights."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from grandrounds.data.families import OWN_DATASETS
from grandrounds.evaluation.metrics import OWN_METRICS, SELECTABLE
from grandrounds.federation.own_methods import OWN_METHODS

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Imports the module of an example, without a trace of it afterwards."""
    for registry in (OWN_DATASETS, OWN_METRICS, OWN_METHODS):
        monkeypatch.setattr(registry, "entries", dict(registry.entries))

    def load(name):
        monkeypatch.syspath_prepend(str(EXAMPLES / name))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return pytest.importorskip(name)

    yield load
    for name in ("fedala", "own_data"):
        sys.modules.pop(name, None)


def test_fedala_moves_the_own_values_towards_the_received_ones(example):
    fedala = example("fedala")
    own, received, weight = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0]), torch.tensor([0.25, 1.0])
    torch.testing.assert_close(fedala.aggregate(own, received, weight), torch.tensor([1.5, -2.0]))


def test_fedala_learns_weights_between_zero_and_one(example):
    fedala = example("fedala")
    own, received = torch.tensor([1.0, 2.0, 0.0]), torch.tensor([3.0, -2.0, 1.0])  # differences 2, -4, 1
    weight, gradient = torch.tensor([0.5, 0.5, 0.9]), torch.tensor([0.1, 0.1, -1.0])
    found = fedala.learnt_weight(weight, gradient, own, received, rate=0.5)
    torch.testing.assert_close(found, torch.tensor([0.4, 0.7, 1.0]))  # .5 - .5 * .2, .5 + .5 * .4, clipped


def test_fedalas_gradient_is_that_of_the_loss_in_the_weights(example):
    fedala = example("fedala")
    own, received = torch.tensor([0.3, -1.0]), torch.tensor([1.3, 0.5])
    weight = torch.tensor([0.6, 0.2], requires_grad=True)
    loss = (fedala.aggregate(own, received, weight) ** 3).sum()
    (expected,) = torch.autograd.grad(loss, weight)
    values = fedala.aggregate(own, received, weight).detach().requires_grad_()
    (gradient,) = torch.autograd.grad((values**3).sum(), values)
    moved = fedala.learnt_weight(weight.detach(), gradient, own, received, rate=0.01)
    torch.testing.assert_close(moved, weight.detach() - 0.01 * expected)


def test_fedala_takes_the_last_layers_that_are_trained(example):
    fedala = example("fedala")
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.Linear(2, 2))
    assert fedala.last_layers(network, 1) == ["3.weight", "3.bias"]
    assert fedala.last_layers(network, 2) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    network[3].requires_grad_(False)
    assert fedala.last_layers(network, 1) == ["1.weight", "1.bias"]


def test_the_method_fits_in_two_hundred_lines():
    assert len((EXAMPLES / "fedala" / "fedala.py").read_text().splitlines()) <= 200


def test_kappa_is_agreement_beyond_chance(example):
    kappa = example("own_data").cohen_kappa
    labels, predicted = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 1])
    # Observed 4/5; expected 3/5 * 2/5 + 2/5 * 3/5 = 12/25.
    assert kappa(labels, np.eye(2)[predicted]) == pytest.approx((4 / 5 - 12 / 25) / (1 - 12 / 25))
    assert kappa(np.zeros(3, int), np.tile([0.9, 0.1], (3, 1))) == 0
    assert "cohen_kappa" not in SELECTABLE
