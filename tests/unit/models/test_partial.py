"""Frozen layers compute what they did in the whole network, and are in nothing that is trained, sent or kept."""

import copy

import pytest
import torch
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError
from grandrounds.models.norm_layers import FrozenBatchNorm, frozen_statistics
from grandrounds.models.partial import freeze_front, front_of, frozen_digest, frozen_names, input_channels
from grandrounds.models.registry import BACKBONES, backbone_names, build_model, minimum_image_size
from grandrounds.models.split import block_name, chain_names, split_network
from grandrounds.privacy.mechanisms.dp_sgd import require_separate_samples
from grandrounds.protocol.messages import is_running_statistic
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import torch_generator

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
BLOCKS = {
    "compact": "0 1 2",
    "densenet121": "norm0 relu0 pool0 denseblock1 transition1 denseblock2 transition2 denseblock3 transition3 denseblock4 "
    "norm5",
    "efficientnet_b0": "1 2 3 4 5 6 7 8",
    "efficientnet_lite0": "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 widen",
    "resnet18": "bn1 relu maxpool layer1 layer2 layer3 layer4",
    "resnet9": "residual1 middle residual2",
}


def randomise(network: nn.Module) -> nn.Module:
    """Give batch norms statistics, scales and shifts that no initialisation has."""
    generator = torch_generator("norms")
    for module in network.modules():
        if isinstance(module, NORMS):
            for tensor in (module.weight.data, module.running_var):
                tensor.uniform_(0.5, 1.5, generator=generator)
            for tensor in (module.bias.data, module.running_mean):
                tensor.normal_(0, 0.1, generator=generator)
    return network


def images(side: int, count: int = 2) -> Tensor:
    return torch.rand(count, 3, side, side, generator=torch_generator("images"))


def assert_same(found: Tensor, expected: Tensor, where: str) -> None:
    scale = expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * scale, msg=lambda text: f"{where}: {text}")


def possible(backbone: str, network: nn.Module) -> list[str]:
    """All that ``trainable`` can be, apart from ``all``."""
    blocks = [block_name(name) for name in chain_names(network, BACKBONES[backbone].chain)]
    with pytest.raises(ConfigurationError) as error:
        frozen_names(network, "from:nowhere", BACKBONES[backbone].chain)
    text = str(error.value)
    assert "has no block 'nowhere' to train from; there are " in text
    assert "\n" not in text
    named = text.partition("there are ")[2].removesuffix(", and head").split(", ")
    assert named == blocks[len(blocks) - len(named) :]
    return [*(f"from:{block}" for block in named), "head"]


@pytest.mark.parametrize("backbone", backbone_names())
def test_every_network_predicts_the_same_with_a_front_and_from_its_features(backbone):
    whole = randomise(build_model(ModelSpec(backbone, classes=3), seed=1)).eval()
    batch, chain = images(minimum_image_size(backbone)), BACKBONES[backbone].chain
    ways = possible(backbone, whole)
    if backbone in BLOCKS:
        assert ways == [*(f"from:{block}" for block in BLOCKS[backbone].split()), "head"]
    with torch.no_grad():
        expected = whole(batch)
        for trainable in ways:
            network = copy.deepcopy(whole)
            frozen = frozen_names(network, trainable, chain)
            if trainable == "head":
                unfolded = split_network(whole).encoder(batch)[:, :, None, None]
            else:
                unfolded = nn.Sequential(*(whole.get_submodule(name) for name in frozen))(batch)
            freeze_front(network, trainable, frozen, 3, "scaled")
            network.train().eval()
            front = front_of(network)
            features = front(batch)
            assert_same(features, unfolded, f"{trainable}: features")
            assert_same(network(batch), expected, f"{trainable}: images")
            assert_same(network(features), expected, f"{trainable}: features of the front")
            kept = {name for name in whole.state_dict() if not name.startswith(tuple(f"{name}." for name in frozen))}
            assert network.state_dict().keys() == kept, trainable
            assert {name for name, _ in network.named_parameters()} <= kept
            assert {name for name, _ in network.named_buffers()} <= kept
            assert len(kept) < len(whole.state_dict())
            assert not list(front.children())


def test_a_block_before_which_nothing_is_learnt_is_no_choice():
    """The input noise of ResNet-22 has no parameters: a front of it alone would keep copies of the images."""
    network = build_model(ModelSpec("resnet22", classes=3), seed=1)
    assert possible("resnet22", network)[0] == "from:0"
    for block in ("noise", "stem"):
        with pytest.raises(ConfigurationError, match=f"has no block '{block}'"):
            frozen_names(network, f"from:{block}", BACKBONES["resnet22"].chain)


def test_an_unknown_block_is_refused_with_the_known_ones():
    message = r"^problem\.trainable: CompactNet has no block '9' to train from; there are 0, 1, 2, and head$"
    with pytest.raises(ConfigurationError, match=message):
        build_model(ModelSpec("compact", classes=3, trainable="from:9"), seed=1)


def partial(trainable: str = "from:1", seed: int = 1, **options) -> nn.Module:
    return build_model(ModelSpec("compact", classes=3, trainable=trainable, **options), seed=seed)


@pytest.mark.parametrize(
    ("trainable", "kept"),
    [
        ("all", ("stem.", "blocks.", "classifier.")),
        ("from:1", ("blocks.1.", "blocks.2.", "classifier.")),
        ("head", ("cl",)),
    ],
)
def test_the_trained_layers_are_those_of_the_seed_and_get_gradients(trainable, kept):
    network = partial(trainable).train()
    whole = partial("all").state_dict()
    assert network.state_dict().keys() == {name for name in whole if name.startswith(kept)}
    assert all(torch.equal(tensor, whole[name]) for name, tensor in network.state_dict().items())
    network(images(32, 4)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert (front_of(network) is None) == (trainable == "all")
    assert input_channels(network) == 3


def test_the_front_stays_in_evaluation_mode_and_does_not_change():
    network = partial()
    front = front_of(network)
    layers = front._forward.network
    before = {name: tensor.clone() for name, tensor in layers.state_dict().items()}
    batch = images(32, 8)
    expected = front(batch)
    optimizer = torch.optim.SGD(network.train().parameters(), lr=1.0)
    network(batch).square().mean().backward()
    optimizer.step()
    assert torch.equal(front(batch), expected)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layers.state_dict().items())
    assert not any(module.training for module in layers.modules())
    assert not front(batch).requires_grad


def test_copies_and_networks_of_the_same_weights_share_the_front():
    network = partial()
    assert front_of(copy.deepcopy(network))._forward.network is front_of(network)._forward.network
    assert front_of(partial())._forward.network is front_of(network)._forward.network
    for other in (partial(seed=2), partial("from:2"), partial(intensities="spread")):
        assert front_of(other)._forward.network is not front_of(network)._forward.network


def test_the_digest_is_that_of_the_frozen_layers():
    digest = frozen_digest(partial())
    assert digest == frozen_digest(partial()) == frozen_digest(partial(dropout=0.5))
    others = [frozen_digest(partial(seed=2)), frozen_digest(partial("from:2")), frozen_digest(partial("head"))]
    assert len({digest, *others}) == 4
    assert frozen_digest(partial("all")) is None


@pytest.mark.parametrize("intensities", ["spread", "efficientnet_lite"])
def test_intensities_are_normalised_once_before_the_front(intensities):
    whole, network = (partial(way, intensities=intensities).eval() for way in ("all", "from:1"))
    batch = images(32)
    with torch.no_grad():
        expected = whole(batch)
        assert_same(network(batch), expected, "images")
        assert_same(network(front_of(network)(batch)), expected, "features")


def test_grey_images_pass_a_front_of_one_channel():
    network = partial(channels=1).eval()
    whole = partial("all", channels=1).eval()
    grey = images(32)[:, :1]
    with torch.no_grad():
        assert_same(network(front_of(network)(grey)), whole(grey), "grey")
    assert input_channels(network) == 1


# Batch norm with frozen statistics.


@pytest.fixture
def weights(tmp_path):
    """A file of a network with statistics of its own."""
    path = tmp_path / "start.pt"
    torch.save(randomise(partial("all")).state_dict(), path)
    return {"weights": str(path), "intensities": "scaled"}


def test_a_frozen_batch_norm_is_batch_norm_in_evaluation_mode(weights):
    usual = partial("all", **weights).eval()
    network = partial("all", norm="frozen", **weights).train()
    batch = images(32, 4)
    expected = usual(batch)
    statistics = {name: tensor.clone() for name, tensor in frozen_statistics(network).items()}
    for _ in range(2):
        torch.testing.assert_close(network(batch), expected)
    assert all(torch.equal(tensor, statistics[name]) for name, tensor in frozen_statistics(network).items())
    alone = torch.cat([network(image[None]) for image in batch])
    torch.testing.assert_close(alone, expected, rtol=1e-4, atol=1e-4)
    expected.square().mean().backward()
    network(batch).square().mean().backward()
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.grad, usual.get_parameter(name).grad, rtol=1e-3, atol=1e-4)


def test_frozen_statistics_are_in_no_state_and_stop_no_private_training(weights):
    network = partial("all", norm="frozen", **weights)
    assert any(isinstance(module, FrozenBatchNorm) for module in network.modules())
    assert not any(is_running_statistic(name) for name in network.state_dict())
    require_separate_samples(network)
    require_separate_samples(partial("head"))
    with pytest.raises(ConfigurationError, match=r"needs problem\.norm=group, or frozen"):
        require_separate_samples(partial("from:1"))


def test_frozen_statistics_count_in_the_digest(weights, tmp_path):
    digest = frozen_digest(partial("all", norm="frozen", **weights))
    state = torch.load(weights["weights"], weights_only=True)
    state["blocks.2.residual.1.running_mean"] += 1
    torch.save(state, tmp_path / "other.pt")
    other = {**weights, "weights": str(tmp_path / "other.pt")}
    assert digest != frozen_digest(partial("all", norm="frozen", **other))
    assert digest == frozen_digest(partial("all", norm="frozen", **weights))


# The whole network again.


@pytest.mark.parametrize("trainable", ["from:1", "head"])
@pytest.mark.parametrize("norm", ["batch", "group", "frozen"])
def test_a_whole_network_takes_the_trained_entries_and_predicts_the_same(weights, trainable, norm):
    network = partial(trainable, norm=norm, **weights).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.1)
    exported = partial(trainable, norm="batch" if norm == "frozen" else norm, whole=True, **weights).eval()
    assert front_of(exported) is None
    missing, unexpected = exported.load_state_dict(network.state_dict(), strict=False)
    assert not unexpected
    assert missing
    batch = images(32)
    with torch.no_grad():
        assert_same(exported(batch), network(batch), norm)
