"""Encoder and head are the network, for every backbone."""

import pytest
import torch
from torch import nn

from grandrounds.models.registry import backbone_names, build_model, minimum_image_size
from grandrounds.models.split import embedding_width, split_last_layer, split_network
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import torch_generator

WIDTHS = {
    "compact": 96,
    "densenet121": 1024,
    "efficientnet_b0": 1280,
    "mobilenetv2": 1280,
    "resnet10": 512,
    "resnet12": 512,
    "resnet18": 512,
    "efficientnet_lite0": 1280,
    "resnet22": 256,
    "resnet9": 512,
    "shufflenet": 800,
}


def images(side: int) -> torch.Tensor:
    return torch.rand(2, 3, side, side, generator=torch_generator("images"))


@pytest.mark.parametrize("backbone", backbone_names())
def test_the_parts_together_are_the_network(backbone):
    network = build_model(ModelSpec(backbone, classes=3), seed=1).eval()
    encoder, head = split_network(network)
    batch = images(minimum_image_size(backbone))
    embeddings = encoder(batch)
    assert embeddings.shape == (2, WIDTHS[backbone]) == (2, embedding_width(head))
    assert torch.equal(head(embeddings), network(batch))
    ours = {id(parameter) for part in (encoder, head) for parameter in part.parameters()}
    assert ours == {id(parameter) for parameter in network.parameters()}
    assert not {id(p) for p in encoder.parameters()} & {id(p) for p in head.parameters()}


def test_the_network_keeps_its_head_and_its_names():
    network = build_model(ModelSpec("compact", classes=3), seed=1)
    names = list(network.state_dict())
    split_network(network)
    assert isinstance(network.classifier, nn.Linear)
    assert list(network.state_dict()) == names


def test_a_step_of_the_encoder_is_one_of_the_network_and_loaded_weights_arrive():
    network = build_model(ModelSpec("compact", classes=3), seed=1)
    encoder, head = split_network(network)
    before = network.stem[0].weight.detach().clone()
    encoder(images(32)).sum().backward()
    torch.optim.SGD(encoder.parameters(), lr=1.0).step()
    assert not torch.equal(network.stem[0].weight, before)
    assert head.weight.grad is None
    other = build_model(ModelSpec("compact", classes=3), seed=2)
    network.load_state_dict(other.state_dict())
    network.eval()
    assert torch.equal(head(encoder(images(32))), other.eval()(images(32)))


def test_a_head_without_a_linear_layer_has_no_known_width():
    with pytest.raises(ValueError, match="Identity has no linear layer"):
        embedding_width(nn.Identity())


@pytest.mark.parametrize("head", ["linear", "depths", "mlp:8"])
def test_logits_are_linear_in_what_the_last_layer_reads(head):
    model = build_model(ModelSpec("efficientnet_lite0", classes=3, head=head), seed=1).eval()
    before, weights = split_last_layer(model)
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    rest = model(images) - before(images) @ weights.T
    assert torch.allclose(rest, rest[:1].expand_as(rest), atol=1e-5)
    assert model(images).shape == (4, 3)
