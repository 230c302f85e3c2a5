"""The head on several depths reads what it says, with all layers trained and with any of them frozen."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from grandrounds.models.backbones.own import OWN_BACKBONES, register_backbone
from grandrounds.models.depths import DepthHead, DepthNetwork, depth_features, depth_head, moments, risk_logits
from grandrounds.models.partial import freeze_front, front_of, frozen_digest, frozen_names
from grandrounds.models.registry import BACKBONES, build_model, minimum_image_size
from grandrounds.models.split import block_name, embedding_width, head_name, head_of, split_network
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import torch_generator

FEATURES = {
    "compact": 2 * (32 + 64) + 96,
    "densenet121": 2 * (128 + 256 + 512) + 1024,
    "efficientnet_b0": 2 * (40 + 80 + 112 + 192) + 1280,
    "efficientnet_lite0": 2 * (40 + 80 + 80 + 112 + 112 + 192 + 192 + 320),
    "mobilenetv2": 2 * (32 + 64 + 96 + 160) + 1280,
    "resnet10": 2 * (64 + 128 + 256) + 512,
    "resnet12": 2 * (64 + 128 + 256) + 512,
    "resnet18": 2 * (64 + 128 + 256) + 512,
    "resnet22": 2 * (16 + 32 + 64 + 128) + 256,
    "resnet9": 2 * (128 + 512) + 512,
    "shufflenet": 2 * (200 + 400) + 800,
}
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def deep(backbone: str = "compact", **options) -> nn.Module:
    """A network in evaluation mode whose norms and scaling are no initialisation's."""
    network = build_model(ModelSpec(backbone, classes=3, head="depths", **options), seed=1).eval()
    generator = torch_generator("deep")
    for name, value in network.named_buffers():
        if name.endswith(("running_var", "scale")):
            value.uniform_(0.5, 1.5, generator=generator)
        elif name.endswith(("running_mean", "shift")):
            value.normal_(0, 0.1, generator=generator)
    return network


def images(side: int, count: int = 2) -> Tensor:
    return torch.rand(count, 3, side, side, generator=torch_generator("images"))


def by_hand(network: nn.Module, backbone: str, batch: Tensor) -> np.ndarray:
    """Moments in numpy of what hooks catch, beside the backbone's own embedding."""
    maps: dict[str, np.ndarray] = {}
    taps = [name for name, _ in BACKBONES[backbone].taps]
    plain = build_model(ModelSpec(backbone, classes=3), seed=2).eval()
    head = f"{head_name(plain)}."
    plain.load_state_dict(
        {name: value for name, value in network.state_dict().items() if not name.startswith(head)}, strict=False
    )
    hooks = [
        plain.get_submodule(name).register_forward_hook(
            lambda _, __, output, name=name: maps.update({name: output.double().numpy().copy()})
        )
        for name in taps
    ]
    with torch.no_grad():
        embedding = split_network(plain).encoder(batch).numpy()
    for hook in hooks:
        hook.remove()
    found = [statistic(maps[name], axis=(2, 3)) for name in taps for statistic in (np.mean, np.std)]
    return np.concatenate([*found, embedding] if BACKBONES[backbone].reads_last else found, axis=1)


def test_every_backbone_declares_the_layers_that_the_head_reads():
    assert FEATURES.keys() == BACKBONES.keys()
    assert all(backbone.taps for backbone in BACKBONES.values())


@pytest.mark.parametrize("backbone", FEATURES)
def test_features_are_mean_and_deviation_of_taps_and_the_embedding(backbone):
    network, batch = deep(backbone), images(minimum_image_size(backbone))
    found = depth_features(network, batch)
    head = head_of(network)
    assert isinstance(head, DepthHead)
    assert found.shape == (2, FEATURES[backbone])
    assert head.features == embedding_width(head) == FEATURES[backbone]
    assert found.dtype == torch.float32
    assert not found.requires_grad
    np.testing.assert_allclose(found, by_hand(network, backbone, batch), **CLOSE)
    with torch.no_grad():
        expected = head.temperature * ((found - head.shift) * head.scale @ head.linear.weight.T + head.linear.bias)
        torch.testing.assert_close(network(batch), expected)


@pytest.mark.parametrize("backbone", FEATURES)
def test_a_frozen_part_hands_over_its_taps(backbone):
    whole, batch = deep(backbone), images(minimum_image_size(backbone))
    chain = BACKBONES[backbone].chain
    everything = frozen_names(whole, "head", chain)
    first = next(i for i, name in enumerate(everything) if list(whole.get_submodule(name).parameters()))
    expected = depth_features(whole, batch)
    with torch.no_grad():
        logits = whole(batch)
    for trainable in [*(f"from:{block_name(name)}" for name in everything[first + 1 :: 2]), "head"]:
        network = copy.deepcopy(whole)
        frozen = frozen_names(network, trainable, chain)
        freeze_front(network, trainable, frozen, 3, "scaled")
        given = front_of(network)(batch)
        assert given.dim() == 4, trainable
        for inputs in (batch, given):
            torch.testing.assert_close(depth_features(network, inputs), expected, **CLOSE)
            with torch.no_grad():
                torch.testing.assert_close(network(inputs), logits, **CLOSE)
        kept = {name for name in whole.state_dict() if not name.startswith(tuple(f"{name}." for name in frozen))}
        assert network.state_dict().keys() == kept, trainable
    assert given.shape == (2, FEATURES[backbone], 1, 1)


def test_taps_in_trained_blocks_get_gradients_and_those_in_front_do_not():
    network = deep(trainable="from:1").train()
    network(images(64)).sum().backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in network.parameters())
    assert {name.partition(".")[0] for name, _ in network.named_parameters()} == {"blocks", "classifier"}


def test_a_map_of_one_level_has_no_deviation_and_a_finite_gradient():
    maps = torch.ones(1, 2, 4, 4, requires_grad=True)
    mean, deviation = moments(maps)
    (mean + deviation).sum().backward()
    assert deviation.tolist() == [[0.0, 0.0]]
    assert maps.grad.eq(1 / 16).all()


def test_the_front_of_a_head_on_depths_is_another_one_than_that_of_the_last_layer():
    """Kept features and a site's agreement are found by it."""
    digests = {
        frozen_digest(build_model(ModelSpec("compact", 3, head=head, trainable=trainable), seed=1))
        for head in ("linear", "depths")
        for trainable in ("from:1", "head")
    }
    assert len(digests) == 4


def test_fronts_of_the_same_layers_that_read_others_differ():
    digests = set()
    for taps in ({"blocks.0": 32}, {"blocks.1": 64}):
        network = DepthNetwork(build_model(ModelSpec("compact", 3), seed=1), ["stem", "blocks.*"], taps, 3)
        freeze_front(network, "from:2", ["stem", "blocks.0", "blocks.1"], 3, "scaled")
        digests.add(frozen_digest(network))
    assert len(digests) == 2


def test_only_weights_and_bias_are_trained():
    head = head_of(deep())
    assert {name for name, _ in head.named_parameters()} == {"linear.weight", "linear.bias"}
    assert head.state_dict().keys() == {"linear.weight", "linear.bias", "shift", "scale", "temperature", "risk"}


def test_scaling_and_temperature_are_integers_of_the_same_bits_in_the_state():
    head = head_of(deep())
    state = head.state_dict()
    assert {name for name, value in state.items() if value.is_floating_point()} == {"linear.weight", "linear.bias"}
    assert torch.equal(state["scale"].view(torch.float32), head.scale)
    other = DepthHead(head.features, 3, 0.0)
    other.load_state_dict(copy.deepcopy(state))
    assert torch.equal(other.scale, head.scale)
    assert torch.equal(other.shift, head.shift)


def test_a_solution_is_written_into_the_state():
    head = DepthHead(features=1, classes=2, dropout=0.0)
    weights, bias = torch.tensor([[-3 / 8], [3 / 8]]).double(), torch.tensor([13 / 12, -1 / 12]).double()
    head.set_linear(weights, bias)
    torch.testing.assert_close(head(torch.tensor([[2.0]])), torch.tensor([[1 / 3, 2 / 3]]))
    head.set_linear(weights, bias, torch.tensor([1.0]), torch.tensor([4.0]), temperature=8.0)
    # 8 (-3/8 x 4 (2 - 1) + 13/12) and 8 (3/8 x 4 (2 - 1) - 1/12)
    torch.testing.assert_close(head(torch.tensor([[2.0]])), torch.tensor([[-10 / 3, 34 / 3]]))


def test_risks_follow_from_decisions_and_are_the_same_in_a_state_of_before():
    head, features = DepthHead(features=1, classes=2, dropout=0.0), torch.tensor([[2.0]])
    head.set_linear(torch.ones(2, 1), torch.zeros(2), temperature=8.0, risk=torch.tensor([[0.5, 0.5], [-1.0, 3.0]]))
    assert risk_logits(nn.Sequential(head), head(features)).tolist() == [[7.0, 11.0]]  # half of 16
    before = {name: value for name, value in head.state_dict().items() if name != "risk"}
    head.load_state_dict(before)
    assert torch.equal(head.risks(head(features)), head(features))
    linear = nn.Linear(1, 2)
    assert risk_logits(nn.Sequential(linear), features) is features, "of a network with another head"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weights": torch.zeros(1, 2)}, r"weights must be finite and of shape \(2, 1\), got \(1, 2\)"),
        ({"bias": torch.tensor([0.0, float("nan")])}, r"bias must be finite"),
        ({"scale": torch.tensor([1e300]).double()}, r"scale must be finite"),
        ({"shift": torch.zeros(2)}, r"shift must be .* shape \(1,\)"),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"temperature": float("inf")}, "temperature must be finite"),
    ],
)
def test_a_solution_that_does_not_fit_is_refused(changed, message):
    head = DepthHead(features=1, classes=2, dropout=0.0)
    before = copy.deepcopy(head.state_dict())
    with pytest.raises(ValueError, match=message):
        head.set_linear(**{"weights": torch.zeros(2, 1), "bias": torch.zeros(2), **changed})
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


def test_features_need_such_a_network_in_evaluation_mode():
    with pytest.raises(ValueError, match="CompactNet has no features of several depths: build it with head=depths"):
        depth_features(build_model(ModelSpec("compact", 3), seed=1).eval(), images(32))
    with pytest.raises(ValueError, match="must be in evaluation mode"):
        depth_features(deep().train(), images(32))


@pytest.mark.parametrize(("dropout", "expected"), [(None, 0.2), (0.4, 0.4)])
def test_dropout_is_the_backbones_own_unless_it_is_set(dropout, expected):
    head = head_of(deep("efficientnet_lite0", dropout=dropout))
    assert [module.p for module in head.modules() if isinstance(module, nn.Dropout)] == [expected]


def test_of_a_registered_network_the_embedding_is_read_with_weights_of_the_undivided_one(monkeypatch, tmp_path):
    monkeypatch.setattr(OWN_BACKBONES, "entries", {})
    register_backbone("plainnet", stride=4)(plain_network)
    torch.manual_seed(4)
    network = plain_network(5, 3).eval()
    torch.save(network.state_dict(), tmp_path / "plain.pt")
    spec = ModelSpec("plainnet", 3, head="depths", weights=str(tmp_path / "plain.pt"), intensities="scaled")
    for trainable in ("all", "head"):
        built = build_model(replace(spec, trainable=trainable), seed=1).eval()
        torch.testing.assert_close(depth_features(built, images(8)), network[:3](images(8)))
        assert depth_head(built).features == 6


def plain_network(classes, channels):
    return nn.Sequential(nn.Conv2d(channels, 6, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, classes))


def test_weights_are_loaded_with_and_without_their_head(tmp_path):
    network, plain = deep(), build_model(ModelSpec("compact", 3), seed=7)
    for number, (state, classes, same_head) in enumerate(
        [(network.state_dict(), 3, True), (network.state_dict(), 4, False), (plain.state_dict(), 3, False)]
    ):
        path = tmp_path / f"{number}.pt"
        torch.save(state, path)
        spec = ModelSpec("compact", classes, head="depths", weights=str(path), intensities="scaled")
        loaded = build_model(spec, seed=3).state_dict()
        assert all(
            torch.equal(value, state[name]) for name, value in loaded.items() if not name.startswith("classifier.")
        )
        scale = state["classifier.scale"] if same_head else torch.ones(FEATURES["compact"]).view(torch.int32)
        assert torch.equal(loaded["classifier.scale"], scale)
