"""Local steps are seeded, checked and summed; the optimizers are torch's without its compiler."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from grandrounds.deployment.jobs import load_job
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.site import training
from grandrounds.federation.site.context import SiteContext, StateCache, TaskAborted
from grandrounds.federation.site.training import (
    SGD,
    Adam,
    Meter,
    OptimizerStep,
    new_optimizer,
    parameter_groups,
    run_steps,
    set_rate,
    train_steps,
)
from grandrounds.methods.fedirm.executor import FedIRMExecutor


def context(aborted=lambda: False, seed=1):
    return SiteContext(
        "site-1", 1, SimpleNamespace(), seed, None, torch.device("cpu"), "float32", aborted, StateCache(Path())
    )


def weight():
    """A single weight of 1."""
    network = nn.Linear(1, 1, bias=False)
    nn.init.ones_(network.weight)
    return network


def descent_of(network, rate=0.1):
    return OptimizerStep(network, new_optimizer(network.parameters(), "sgd", rate))


def test_each_step_goes_down_its_loss_and_the_losses_add_up():
    network, meter = weight(), Meter()
    train_steps(context(), 2, lambda step: (step + 1) * network.weight.sum(), descent_of(network), meter)
    # 1 - 0.1 * 1 - 0.1 * 2; the losses are 1 * 1 and 2 * 0.9
    assert network.weight.item() == pytest.approx(0.7)
    assert meter.total("loss") == pytest.approx(2.8)
    assert meter.total("nothing") == 0


@pytest.mark.parametrize("scaled", [False, True])
def test_several_losses_make_one_step_and_each_has_its_backward_pass_before_the_next_is_computed(scaled):
    network, meter, before = weight(), Meter(), []
    scaler = replace(context(), precision="float16").gradient_scaler() if scaled else None
    scale = scaler.get_scale() if scaled else 1.0

    def losses_of(step):
        for factor in (1.0, 2.0, 4.0):
            before.append(0.0 if network.weight.grad is None else network.weight.grad.item() / scale)
            yield factor * network.weight.sum()

    descent = OptimizerStep(network, new_optimizer(network.parameters(), "sgd", 0.1), scaler=scaler)
    train_steps(context(), 1, losses_of, descent, meter)
    assert before == [0, 1, 3]  # the gradient of the losses so far
    assert network.weight.item() == pytest.approx(0.3)
    assert meter.total("loss") == pytest.approx(7)


def test_no_loss_among_several_leaves_the_step_out():
    network = weight()
    descent = OptimizerStep(network, new_optimizer(network.parameters(), "sgd", 0.1), 0.5)
    network.weight.data.fill_(2.0)  # the pull back to the start is no reason for a step
    train_steps(context(), 2, lambda step: iter(()), descent, Meter())
    assert network.weight.item() == 2


def test_a_step_without_a_loss_is_left_out():
    network, meter = weight(), Meter()
    train_steps(context(), 3, lambda step: network.weight.sum() if step == 1 else None, descent_of(network), meter)
    assert network.weight.item() == pytest.approx(0.9)
    assert meter.total("loss") == pytest.approx(1.0)


def test_a_loss_that_is_not_finite_changes_nothing():
    network = weight()
    with pytest.raises(GrandRoundsError, match="the loss of step 1 is not finite"):
        train_steps(context(), 2, lambda s: network.weight.sum() / (1 - s), descent_of(network), Meter())
    assert network.weight.item() == pytest.approx(0.9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_stops_training_and_names_the_step(bad):
    meter = Meter()
    meter.require_finite(torch.ones(3), "loss", 7)
    with pytest.raises(GrandRoundsError, match=r"the loss of step 7 is not finite; lower executor.learning_rate"):
        meter.require_finite(torch.tensor([1.0, bad, 2.0]), "loss", 7)


@pytest.mark.parametrize(("steps", "taken"), [(5, 5), (10, 8)])
def test_where_looking_waits_checks_are_read_some_at_a_time_and_the_first_failure_is_named(monkeypatch, steps, taken):
    monkeypatch.setattr(training, "on_host", lambda values: False)
    monkeypatch.setattr(training, "UNREAD_CHECKS", 4)
    network, seen = weight(), []

    def loss_of(step):
        seen.append(step)
        return network.weight.sum() / (0 if step in (4, 6) else 1)

    with pytest.raises(GrandRoundsError, match="the loss of step 4 is not finite"):
        train_steps(context(), steps, loss_of, descent_of(network), Meter())
    assert len(seen) == taken


def test_a_task_that_was_given_up_stops_before_the_next_step():
    network, steps = weight(), []

    def loss_of(step):
        steps.append(step)
        return network.weight.sum()

    with pytest.raises(TaskAborted):
        train_steps(context(lambda: len(steps) == 2), 5, loss_of, descent_of(network), Meter())
    assert steps == [0, 1]


def test_chance_is_the_sites_and_the_callers_stays_as_it_was():
    drawn = []

    def loss_of(step):
        drawn.append(torch.rand(()).item())

    descent = descent_of(weight())
    for seed in (1, 1, 2):
        torch.manual_seed(5)
        train_steps(context(seed=seed), 2, loss_of, descent, Meter())
        after = torch.rand(()).item()
        torch.manual_seed(5)
        assert after == torch.rand(()).item()
    assert drawn[:2] == drawn[2:4]
    assert len(set(drawn)) == 4


@pytest.mark.parametrize(("algorithm", "kind"), [("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)])
def test_an_optimizer_is_of_its_kind_and_without_weight_decay_unless_asked(algorithm, kind):
    made = new_optimizer(weight().parameters(), algorithm, 0.25)
    assert isinstance(made, kind)
    assert (made.param_groups[0]["lr"], made.param_groups[0]["weight_decay"]) == (0.25, 0)
    assert new_optimizer(weight().parameters(), algorithm, 0.1, weight_decay=0.5).param_groups[0]["weight_decay"] == 0.5


def test_the_head_has_a_rate_of_its_own_in_each_round():
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    made = new_optimizer(parameter_groups(network, 0.5), "adam", 0.1)
    set_rate(made, 0.2)
    before, head = made.param_groups
    assert (before["lr"], head["lr"]) == (0.2, 0.1)
    assert [id(one) for one in before["params"]] == [id(one) for one in network[0].parameters()]
    assert [id(one) for one in head["params"]] == [id(one) for one in network[1].parameters()]
    old = [one.detach().clone() for one in network.parameters()]
    network(torch.ones(1, 2)).sum().backward()
    made.step()
    moved = [float((one.detach() - start).abs().max()) for one, start in zip(network.parameters(), old, strict=True)]
    assert moved == pytest.approx([0.2, 0.2, 0.1, 0.1], rel=1e-3)  # the first step of Adam is the rate
    assert len(parameter_groups(network, 1.0)) == 1
    assert [group["factor"] for group in parameter_groups(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), 3.0)] == [3.0]


OPTIONS = {"lr": 0.1, "weight_decay": 0.01, "fused": True}


def trained(kind, steps, network=None, state=None):
    torch.manual_seed(3)
    network = network or nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    optimizer = kind(network.parameters(), **OPTIONS)
    if state:
        optimizer.load_state_dict(state)
    for _ in range(steps):
        optimizer.zero_grad()
        network(torch.rand(5, 4)).square().sum().backward()
        optimizer.step()
    return network, optimizer


@pytest.mark.parametrize(("ours", "theirs"), [(Adam, torch.optim.Adam), (SGD, torch.optim.SGD)])
def test_updates_and_states_are_torchs_bit_for_bit(ours, theirs):
    network, optimizer = trained(ours, 4)
    expected, other = trained(theirs, 4)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), expected.parameters(), strict=True))
    assert optimizer.state_dict()["param_groups"] == other.state_dict()["param_groups"]
    for number, entries in other.state_dict()["state"].items():
        for name, value in entries.items():
            torch.testing.assert_close(optimizer.state_dict()["state"][number][name], value, rtol=0, atol=0)


def test_a_saved_state_goes_on_in_torchs_adam_and_back():
    network, optimizer = trained(Adam, 2)
    onward, _ = trained(torch.optim.Adam, 2, network, optimizer.state_dict())
    straight, middle = trained(torch.optim.Adam, 2)
    straight, _ = trained(Adam, 2, straight, middle.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(onward.parameters(), straight.parameters(), strict=True))


def test_a_step_leaves_no_graph_and_switches_gradients_on_again():
    network, _ = trained(SGD, 1)
    assert all(parameter.grad_fn is None for parameter in network.parameters())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(("kind", "torchs"), [(Adam, torch.optim.Adam), (SGD, torch.optim.SGD)])
def test_they_pass_for_torchs(kind, torchs):
    assert issubclass(kind, torchs)
    assert kind.__name__ == torchs.__name__


def test_phases_of_a_task_draw_different_numbers():
    drawn = {}
    for phase in ("training", "alignment", "again"):
        purpose = "training" if phase == "again" else phase
        run_steps(context(), 1, lambda step, phase=phase: drawn.update({phase: torch.rand(4)}), purpose)
    assert torch.equal(drawn["training"], drawn["again"])
    assert not torch.equal(drawn["training"], drawn["alignment"])


def test_scaled_gradients_take_the_steps_of_plain_ones_and_an_overflow_takes_none():
    def trained(scaler, gradient):
        network = weight()
        step = OptimizerStep(network, new_optimizer(network.parameters(), "sgd", 0.1), scaler=scaler)
        step.step([(network.weight * gradient).sum()])
        return network.weight.item()

    half = replace(context(), precision="float16")
    scaler = half.gradient_scaler()
    assert trained(scaler, 0.5) == trained(None, 0.5) == pytest.approx(0.95)
    assert trained(scaler, torch.finfo(torch.float32).max) == 1  # scaled by 1024 it is infinite
    assert scaler.get_scale() == 512
    assert not context().gradient_scaler().is_enabled()


@pytest.mark.parametrize("scaled", [False, True])
def test_a_gradient_is_clipped_to_a_norm_before_its_step(scaled):
    scaler = replace(context(), precision="float16").gradient_scaler() if scaled else None
    moved = []
    for gradient in (30.0, 2.0):
        network = weight()
        optimizer = new_optimizer(network.parameters(), "sgd", 0.1)
        OptimizerStep(network, optimizer, scaler=scaler, clip_norm=3.0).step([(network.weight * gradient).sum()])
        moved.append(1 - network.weight.item())
    assert moved == pytest.approx([0.3, 0.2], rel=1e-5)


def test_float16_is_refused_where_gradients_are_not_scaled():
    arguments = load_job("fedirm").executor["args"]
    with pytest.raises(ConfigurationError, match="precision=float16 needs scaled gradients"):
        FedIRMExecutor(**{**arguments, "precision": "float16"})
