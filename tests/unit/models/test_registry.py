"""Sizes of all networks are pinned; initialisation is seeded and leaves no trace; wrong wishes are refused."""

import pickle

import pytest
import torch
from torch import nn

from grandrounds.errors import ConfigurationError
from grandrounds.models.registry import (
    DropoutLinear,
    architecture_fingerprint,
    backbone_names,
    build_model,
    head_of,
    minimum_image_size,
    require_buildable,
)
from grandrounds.models.split import split_network
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import torch_generator

PARAMETERS = {
    "compact": 218_456,
    "densenet121": 6_962_056,
    "efficientnet_b0": 4_017_796,
    "efficientnet_lite0": 3_381_256,  # 4,652,008 with 1000 classes
    "mobilenetv2": 2_294_360,
    "resnet10": 4_902_216,
    "resnet12": 4_976_200,
    "resnet18": 11_180_616,
    "resnet22": 2_843_160,  # 2,841,202 with one channel and two classes
    "resnet9": 6_567_616,  # 6,568,640 with ten classes
    "shufflenet": 885_980,
}

DRAWN_TO_INPUTS = {"mobilenetv2", "resnet10", "resnet12", "resnet22", "resnet9", "shufflenet"}
# Its classifier has batch norms and two dropouts.
WITH_DEEP_HEAD = {"resnet22"}
# Their paper's momentum, where torch's is 0.1.
WITH_SLOW_NORM = {"efficientnet_b0", "efficientnet_lite0"}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads that wait for each other on a busy machine take longer than one alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def images(count: int, side: int, channels: int = 3) -> torch.Tensor:
    return torch.rand(count, channels, side, side, generator=torch_generator("images"))


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("backbone", sorted(PARAMETERS))
def test_every_network_has_its_size_and_trains_at_its_smallest_image_with_the_fewest_samples(backbone, norm):
    model = build_model(ModelSpec(backbone, classes=8, norm=norm), seed=1)
    assert count_parameters(model) == PARAMETERS[backbone]
    assert all(tensor.dtype in (torch.float32, torch.int64) for tensor in model.state_dict().values())
    samples = 2 if backbone in WITH_DEEP_HEAD else 1
    logits = model(images(samples, minimum_image_size(backbone)))
    assert logits.shape == (samples, 8)
    logits.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert sum(float(parameter.grad.abs().sum()) for parameter in model.parameters()) > 0


def test_the_backbones_are_those():
    assert backbone_names() == tuple(sorted(PARAMETERS))


def test_efficientnets_have_the_batch_norm_momentum_of_their_paper_and_the_others_torchs():
    for backbone in set(backbone_names()) - {"resnet9"}:
        norms = [m for m in build_model(ModelSpec(backbone, 3), seed=1).modules() if isinstance(m, nn.BatchNorm2d)]
        assert {norm.momentum for norm in norms} == {0.01 if backbone in WITH_SLOW_NORM else 0.1}


def test_efficientnet_has_the_311_tensors_of_fedperls_similarity():
    model = build_model(ModelSpec("efficientnet_b0", classes=8), seed=1)
    names = [name for name in model.state_dict() if not name.endswith("num_batches_tracked")]
    assert len(list(model.parameters())) == 213
    assert len(names) == 213 + 98


@pytest.mark.parametrize("backbone", ["compact", "resnet18"])
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(backbone):
    spec = ModelSpec(backbone, classes=3, dropout=0.1)
    once, again, other = (build_model(spec, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert all((once[name] != other[name]).any() for name in once if name.endswith("conv1.weight") or "fc." in name)


@pytest.mark.parametrize("spec", [ModelSpec("compact", 3), ModelSpec("resnet18", 3, channels=1, dropout=0.5)])
def test_the_global_generator_is_left_as_it_was_and_does_not_matter(spec):
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        first = build_model(spec, seed=1).state_dict()
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(1)
        second = build_model(spec, seed=1).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("backbone", ["compact", "resnet18"])
def test_weights_are_channels_last(backbone):
    model = build_model(ModelSpec(backbone, classes=3), seed=1)
    kernels = [parameter for parameter in model.parameters() if parameter.dim() == 4]
    assert kernels
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)


@pytest.mark.parametrize(
    ("backbone", "channels"), [("compact", 4), *((backbone, 1) for backbone in sorted(PARAMETERS))]
)
def test_other_channel_counts_change_the_first_convolution_only(backbone, channels):
    ours, usual = (build_model(ModelSpec(backbone, 8, channels=count), seed=1) for count in (channels, 3))
    changed = [name for name, tensor in usual.state_dict().items() if ours.state_dict()[name].shape != tensor.shape]
    assert len(changed) == 1
    assert ours.state_dict()[changed[0]].shape[1] == channels
    scales = [float(model.state_dict()[changed[0]].std()) for model in (ours, usual)]
    # These are drawn to the number of inputs; a stem of few weights scatters.
    ratio = (3 / channels) ** 0.5 if backbone in DRAWN_TO_INPUTS else 1
    assert scales[0] == pytest.approx(ratio * scales[1], rel=0.25)
    assert ours.eval()(images(2, 64, channels)).shape == (2, 8)


@pytest.mark.parametrize("backbone", sorted(set(PARAMETERS) - WITH_DEEP_HEAD))
def test_head_dropout_acts_on_the_features_before_the_last_layer(backbone):
    model = build_model(ModelSpec(backbone, classes=8, dropout=0.5), seed=1)
    head = head_of(model).train()
    linear = [module for module in head.modules() if isinstance(module, nn.Linear)][-1]
    bias = torch.zeros(8) if linear.bias is None else linear.bias
    features = torch.ones(200, linear.in_features)
    kept = features.clone()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        dropped = torch.nn.functional.dropout(features, 0.5)
        torch.default_generator.manual_seed(3)
        logits = head(features)
    torch.testing.assert_close(logits, dropped @ linear.weight.T + bias)
    assert torch.equal(features, kept), "dropout in place would destroy features that are used again"
    torch.testing.assert_close(head.eval()(features), features @ linear.weight.T + bias)


def test_head_dropout_concerns_all_dropouts_of_a_deep_head():
    head = head_of(build_model(ModelSpec("resnet22", classes=2, dropout=0.1), seed=1))
    assert [module.p for module in head.modules() if isinstance(module, nn.Dropout)] == [0.1, 0.1]


def test_head_dropout_keeps_names_weights_and_fingerprint():
    plain, dropping = (build_model(ModelSpec("resnet18", 3, dropout=p), seed=1).state_dict() for p in (None, 0.5))
    assert architecture_fingerprint(plain) == architecture_fingerprint(dropping)
    assert all(torch.equal(plain[name], dropping[name]) for name in plain)


def test_without_an_option_the_dropout_is_the_backbones_own():
    efficientnet = build_model(ModelSpec("efficientnet_b0", classes=3), seed=1)
    assert [module.p for module in efficientnet.modules() if isinstance(module, nn.Dropout)] == [0.2]
    assert not any(isinstance(m, nn.Dropout) for m in build_model(ModelSpec("compact", 3), seed=1).modules())
    assert not isinstance(head_of(build_model(ModelSpec("densenet121", 3), seed=1)), DropoutLinear)


def test_densenet_dropout_in_the_layers_is_in_all_58_of_them():
    model = build_model(ModelSpec("densenet121", classes=3, dropout=0.3, dropout_at="layers"), seed=1)
    rates = [module.drop_rate for module in model.modules() if hasattr(module, "drop_rate")]
    assert rates == [0.3] * 58
    assert type(head_of(model)) is nn.Linear
    in_head = build_model(ModelSpec("densenet121", classes=3, dropout=0.3), seed=1)
    assert {float(module.drop_rate) for module in in_head.modules() if hasattr(module, "drop_rate")} == {0.0}


@pytest.mark.parametrize(("backbone", "trainable"), [("efficientnet_lite0", "head"), ("resnet10", "all")])
def test_hidden_layers_of_the_head_come_between_embeddings_and_logits(backbone, trainable):
    weights = "imagenet" if trainable == "head" else None
    options = {"classes": 3, "trainable": trainable, "weights": weights, "dropout": 0.0}
    plain, deep = (
        build_model(ModelSpec(backbone, **options, head=head), seed=1).eval() for head in ("linear", "mlp:6,5")
    )
    images = torch.rand(2, 3, 64, 64)
    encoder, head = split_network(deep)
    embeddings = encoder(images)
    assert torch.equal(embeddings, split_network(plain).encoder(images))
    first, second, last = (module for module in head.modules() if isinstance(module, nn.Linear))
    assert torch.allclose(deep(images), last(second(first(embeddings).relu()).relu()))
    assert [tuple(layer.weight.shape) for layer in (first, second, last)] == [(6, embeddings.shape[1]), (5, 6), (3, 5)]


@pytest.mark.parametrize("head", ["mlp", "mlp:0", "mlp:8,", "deep"])
def test_a_head_that_cannot_be_built_is_refused(head):
    with pytest.raises(ConfigurationError, match="head must be linear, depths or mlp:<widths>"):
        ModelSpec("compact", classes=2, head=head)


def test_a_dropout_linear_survives_pickling():
    layer = DropoutLinear(nn.Linear(4, 2), 0.5).eval()
    features = torch.ones(1, 4)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(features), layer(features))


def test_the_fingerprint_depends_on_names_shapes_and_dtypes_alone():
    state = {"a": torch.zeros(2, 3), "b": torch.zeros(4)}
    same = architecture_fingerprint({"b": torch.ones(4), "a": torch.ones(2, 3)})
    others = [
        {"a": torch.zeros(2, 3), "c": torch.zeros(4)},
        {"a": torch.zeros(3, 2), "b": torch.zeros(4)},
        {"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.float64)},
        {"a": torch.zeros(2, 3)},
    ]
    assert architecture_fingerprint(state) == same
    assert len({same, *map(architecture_fingerprint, others)}) == 5
    assert len(same) == 64


@pytest.mark.parametrize(
    ("backbone", "hint"),
    [
        ("eficientnet_b0", "unknown backbone 'eficientnet_b0': did you mean 'efficientnet_b0'[?] There are compact, d"),
        ("vgg", "unknown backbone 'vgg': There are compact, densenet121, efficientnet_b0, efficientnet_lite0, mob"),
    ],
)
def test_an_unknown_backbone_is_named_with_its_nearest_match(backbone, hint):
    with pytest.raises(ConfigurationError, match=hint):
        require_buildable(ModelSpec(backbone, classes=3))
    with pytest.raises(ConfigurationError, match=hint):
        minimum_image_size(backbone)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (
            {"dropout_at": "layers"},
            "compact has no dropout in its layers; use dropout_at='head', or one of densenet121",
        ),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused(wish, message):
    with pytest.raises(ConfigurationError, match=message):
        require_buildable(ModelSpec(**{"backbone": "compact", "classes": 3, **wish}))
