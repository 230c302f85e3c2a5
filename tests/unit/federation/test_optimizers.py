"""The optimizers are torch's, but for the compiler that they do not import."""

import pytest
import torch
from torch import nn

from grandrounds.federation.site.training import SGD, Adam

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
