"""Compiled layers compute what plain ones do, for whoever shares them, and nothing else of the network changes."""

import copy

import pytest
import torch

from grandrounds.models.compilation import compile_layers
from grandrounds.models.registry import ModelSpec, build_model
from grandrounds.models.split import split_network
from grandrounds.seeding import torch_generator


@pytest.fixture
def compiled(monkeypatch):
    """A network and its plain twin, and the layers that went to the compiler, in order."""
    taken = []
    original = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **options: (taken.append(self), original(self, **options))
    )
    plain = build_model(ModelSpec("compact", 5), seed=1)
    network = copy.deepcopy(plain)
    compile_layers(network, "aot_eager")
    return network, plain, taken


def images():
    return torch.rand(4, 3, 32, 32, generator=torch_generator("images"))


def gradients(network, parts=False):
    encoder, head = split_network(network)
    (head(encoder(images())) if parts else network(images())).square().sum().backward()
    return {name: parameter.grad for name, parameter in network.named_parameters()}


@pytest.mark.parametrize("parts", [False, True])
def test_a_step_is_the_same_through_the_network_and_through_its_parts(compiled, parts):
    network, plain, _ = compiled
    found, expected = gradients(network, parts), gradients(plain)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], value, msg=name)


def test_everything_but_the_head_is_compiled_and_a_copy_is_plain(compiled):
    network, _, taken = compiled
    assert taken == [network.stem, network.blocks]
    assert network.stem._compiled_call_impl is not None
    assert network.classifier._compiled_call_impl is None
    assert copy.deepcopy(network).stem._compiled_call_impl is None
