"""FedProx: a site is drawn back to where its round started, and with mu = 0 nothing is different; options of training."""

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.training import OptimizerStep, proximal_loss
from grandrounds.methods.supervised.training import TrainingOptions
from grandrounds.protocol.tasks import SINGLE
from grandrounds.seeding import torch_generator


def network():
    layers = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double()
    generator = torch_generator("proximal")
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layers


IMAGES = torch.randn(12, 5, generator=torch_generator("proximal images"), dtype=torch.float64)


def cost(model):
    return model(IMAGES).square().mean()


def descend(weight, steps, kind=torch.optim.SGD):
    model = network()
    descent = OptimizerStep(model, kind(model.parameters(), lr=0.1), weight)
    for _ in range(steps):
        descent.step([cost(model)])
    return model.state_dict()


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_the_loss_is_half_mu_times_the_squared_distance():
    now, start = [torch.tensor([1.0, 3.0]), torch.tensor([[2.0]])], [torch.tensor([0.0, 1.0]), torch.tensor([[5.0]])]
    # 0.1 * (1 + 4 + 9)
    assert proximal_loss(now, start, weight=0.2).item() == pytest.approx(1.4)
    assert proximal_loss(now, now, weight=0.2).item() == 0


def test_the_gradient_leads_away_from_the_start_and_leaves_the_start_alone():
    now, start = torch.tensor([1.0, 3.0], requires_grad=True), torch.tensor([0.0, 1.0])
    proximal_loss([now], [start], weight=0.2).backward()
    # mu times the distance
    torch.testing.assert_close(now.grad, torch.tensor([0.2, 0.4]))
    assert start.grad is None


def test_a_frozen_parameter_does_not_change():
    model = network()
    model[0].weight.requires_grad_(False)
    descent = OptimizerStep(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.5)
    for _ in range(2):
        descent.step([cost(model)])
    assert torch.equal(model[0].weight, network()[0].weight)
    assert not torch.equal(model[3].weight, network()[3].weight)


def test_lists_of_different_models_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        proximal_loss([torch.ones(1), torch.ones(1)], [torch.ones(1)], weight=1.0)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_without_mu_a_step_is_the_optimizers_bit_for_bit(kind):
    model = network()
    optimizer = kind(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        cost(model).backward()
        optimizer.step()
    assert same(descend(0.0, 3, kind), model.state_dict())


def test_the_first_step_is_not_drawn_back_and_later_ones_are():
    assert same(descend(0.5, 1), descend(0.0, 1))
    assert not same(descend(0.5, 2), descend(0.0, 2))


def test_steps_go_down_the_loss_and_the_distance_from_the_start():
    model, start = network(), [parameter.detach().clone() for parameter in network().parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        (cost(model) + proximal_loss(list(model.parameters()), start, weight=0.5)).backward()
        optimizer.step()
    expected = model.state_dict()
    torch.testing.assert_close(descend(0.5, 4), expected, rtol=1e-12, atol=1e-12)


def test_gradients_of_an_earlier_step_do_not_add_up():
    model = network()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e3)
    OptimizerStep(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.0).step([cost(model)])
    assert same(model.state_dict(), descend(0.0, 1))


def test_a_later_round_starts_from_its_own_weights():
    model = network()
    model.load_state_dict(descend(0.0, 3))
    moved = copy.deepcopy(model.state_dict())
    descent = OptimizerStep(model, torch.optim.SGD(model.parameters(), lr=0.0), 0.5)
    descent.step([cost(model)])
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    cost(model).backward()
    assert all(torch.equal(g, p.grad) for g, p in zip(gradients, model.parameters(), strict=True))
    assert torch.equal(model[0].weight, moved["0.weight"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            '{"step": 3}',
            "controller.server_training has no option 'step'; there are algorithm, batch_size, class_counts",
        ),
        ('{"steps": 0}', "controller.server_training.steps must be at least 1, got 0"),
        ('{"steps": 2.5}', "controller.server_training.steps must be an integer, got 2.5"),
        ('{"batch_size": "16"}', "controller.server_training.batch_size must be an integer, got '16'"),
        ("[3]", "controller.server_training must be an object or null, got [3]"),
    ],
)
@pytest.mark.parametrize("name", ["fedavg", "fedperl", "ssfl"])
def test_options_of_training_at_the_server_are_checked_like_those_of_a_site(name, options, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        with_options(load_job(name), [f"controller.server_training={options}"]).checked()


def test_training_at_the_server_takes_the_options_of_a_site():
    given = '{"steps": 3, "learning_rate": 1, "algorithm": "sgd", "proximal_weight": 0.01}'
    assignments = [f"controller.server_training={given}", "executor.strong_levels=[2, 5]"]
    with_options(load_job("fedperl"), assignments).checked()
    with_options(load_job("fedperl"), ["controller.server_training={}"]).checked()


def test_class_weights_can_be_those_of_all_sites_with_a_limit():
    labels = np.array([0, 0, 0, 1])
    own = TrainingOptions().weights_of(labels, 3, SINGLE)
    torch.testing.assert_close(own, torch.tensor([2 / 3, 2.0, 100.0]))  # the median of 3 and 1 is 2
    counts = {"class_weights": "pooled", "class_counts": (400, 100, 4)}
    torch.testing.assert_close(TrainingOptions(**counts).weights_of(labels, 3, SINGLE), torch.tensor([0.25, 1.0, 25.0]))
    limited = TrainingOptions(**counts, class_weight_limit=10.0)
    torch.testing.assert_close(limited.weights_of(labels, 3, SINGLE), torch.tensor([0.25, 1.0, 10.0]))
    assert TrainingOptions(class_weights="none").weights_of(labels, 3, SINGLE) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weights": "pooled"}, "class_weights=pooled needs class_counts"),
        ({"class_counts": (1, 2)}, "class_counts are for class_weights=pooled or logit_adjustment"),
        (
            {"class_weights": "pooled", "class_counts": (0, 0)},
            r"class_counts must be counts, not all zero, got \[0, 0\]",
        ),
        ({"class_weights": "pooled", "class_counts": (1, 2)}, "a count for each of 3 classes, got 2"),
    ],
)
def test_counts_of_all_sites_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        TrainingOptions(**options).weights_of(np.array([0]), 3, SINGLE)
