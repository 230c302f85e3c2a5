"""A network of one's own is divided into encoder and head, trains like the others, and is found by other processes."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

import grandrounds as gr
from grandrounds import plugins
from grandrounds.errors import ConfigurationError
from grandrounds.models.backbones import own as own_backbones
from grandrounds.models.registry import (
    backbone_names,
    build_model,
    chosen_intensities,
    minimum_image_size,
    require_buildable,
)
from grandrounds.models.split import split_network
from grandrounds.protocol.problem import ModelSpec

EXAMPLES = Path(__file__).parents[3] / "examples"


class Own(nn.Module):
    """A network whose classifier is not its last child, as in timm."""

    def __init__(self, classes, channels):
        super().__init__()
        self.classifier = nn.Linear(6, classes)
        self.features = nn.Sequential(nn.Conv2d(channels, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.ReLU())

    def forward(self, images):
        return self.classifier(self.features(images).mean((2, 3)))


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Each test has a registry of its own."""
    monkeypatch.setattr(own_backbones.OWN_BACKBONES, "entries", {})
    monkeypatch.setattr(own_backbones, "_checked", set())
    monkeypatch.setattr(plugins, "_registering", {})
    monkeypatch.delitem(sys.modules, "own_networks", raising=False)  # which an earlier test may have imported


def test_a_registered_network_gives_the_logits_of_the_undivided_one():
    gr.register_backbone("own_net", stride=2, intensities="standardised")(Own)
    spec = ModelSpec("own_net", classes=3, intensities="scaled")
    model = build_model(spec, seed=5).eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        plain = Own(3, 3).eval()
    images = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(model(images), plain(images))
    encoder, head = split_network(model)
    assert encoder(images).shape == (2, 6)
    torch.testing.assert_close(head(encoder(images)), model(images))
    assert "own_net" in backbone_names()
    assert minimum_image_size("own_net") == 4
    with pytest.raises(ConfigurationError, match=r"at least 4 for backbone own_net, got 3: twice the stride=2 of its"):
        require_buildable(spec, 3)
    assert chosen_intensities(ModelSpec("own_net", classes=3)) == "standardised"


def test_a_network_may_take_images_of_one_side_alone():
    gr.register_backbone("own_net", stride=2, side=8)(Own)
    require_buildable(ModelSpec("own_net", classes=3), 8)
    with pytest.raises(ConfigurationError, match="image_size must be 8, the only size for backbone own_net, got 16"):
        require_buildable(ModelSpec("own_net", classes=3), 16)


def test_only_the_head_is_trained_and_the_frozen_encoder_computes_the_same(tmp_path):
    gr.register_backbone("own_net", stride=2)(Own)
    torch.save(Own(4, 3).state_dict(), tmp_path / "own.pt")  # with the names of the undivided network
    spec = ModelSpec("own_net", classes=4, weights=str(tmp_path / "own.pt"), intensities="scaled")
    whole = build_model(spec, seed=1).eval()
    frozen = build_model(ModelSpec(**{**vars(spec), "trainable": "head"}), seed=1).eval()
    assert [name for name, _ in frozen.named_parameters()] == ["head.weight", "head.bias"]
    images = torch.rand(3, 3, 8, 8)
    torch.testing.assert_close(frozen(images), whole(images), atol=1e-5, rtol=1e-5)


def sequence(*layers):
    return lambda classes, channels: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *layers)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (sequence(nn.Linear(3, 7)), r"gives \(2, 7\) for two images, expected logits"),
        (sequence(nn.Unflatten(1, (3, 1)), nn.Conv1d(3, 2, 1), nn.Flatten()), "has no linear layer with 2 outputs"),
        (sequence(nn.Linear(3, 2), nn.Softmax(1)), "its last linear layer does not give the logits"),
        (sequence(nn.Linear(3, 2), nn.Unflatten(1, (2, 1))), r"gives \(2, 2, 1\) for two images, expected logits"),
    ],
)
def test_a_network_that_gives_no_logits_is_refused(factory, message):
    gr.register_backbone("wrong_net", stride=4)(factory)
    with pytest.raises(ConfigurationError, match=message):
        build_model(ModelSpec("wrong_net", classes=2), seed=1)


def test_names_are_checked_and_belong_to_one_factory():
    with pytest.raises(ConfigurationError, match="lower-case letters, digits and _"):
        gr.register_backbone("Own-Net")
    gr.register_backbone("own_net")(Own)
    gr.register_backbone("own_net")(Own)  # a notebook's cell that runs again
    with pytest.raises(ConfigurationError, match=r"'own_net'.*registered"):
        gr.register_backbone("own_net")(sequence())


def test_a_name_of_the_package_is_not_replaced():
    gr.register_backbone("resnet18")(Own)
    with pytest.raises(ConfigurationError, match="'resnet18' is one of the package's own"):
        backbone_names()


def test_the_examples_are_found_by_their_modules_name(monkeypatch):
    monkeypatch.setenv("GRANDROUNDS_PLUGINS", "own_networks")
    monkeypatch.syspath_prepend(str(EXAMPLES / "own_networks"))
    plugins.load_plugins.cache_clear()
    backbones = ["monai_densenet121"] + ["timm_mobilenetv3_small"] * (find_spec("timm") is not None)
    for backbone in backbones:
        model = build_model(ModelSpec(backbone, classes=5), seed=1).eval()
        assert model(torch.rand(2, 3, 64, 64)).shape == (2, 5)
        assert isinstance(model.head, nn.Linear)
    plugins.load_plugins.cache_clear()


def test_a_script_cannot_be_given_to_other_processes(monkeypatch):
    monkeypatch.setattr(Own, "__module__", "__main__")
    gr.register_backbone("own_net")(Own)
    with pytest.raises(ConfigurationError, match="move it into a module beside the script"):
        plugins.environment()


def test_other_processes_get_the_module_and_its_folder():
    gr.register_backbone("own_net")(Own)
    found = plugins.environment()
    assert found["GRANDROUNDS_PLUGINS"] == Own.__module__
    top = Path(__file__).parents[len(Own.__module__.split(".")) - 1]
    assert str(top) in found["PYTHONPATH"].split(os.pathsep)


def test_a_plugin_that_cannot_be_imported_is_named(monkeypatch):
    monkeypatch.setenv("GRANDROUNDS_PLUGINS", "no_such_plugin")
    plugins.load_plugins.cache_clear()
    with pytest.raises(ConfigurationError, match="plug-in no_such_plugin cannot be imported"):
        backbone_names()
    plugins.load_plugins.cache_clear()


@pytest.mark.parametrize(("option", "value"), [("stride", 0), ("side", -1)])
def test_a_stride_and_a_side_are_numbers_of_pixels(option, value):
    with pytest.raises(ConfigurationError, match=f"{option} of backbone own_net .* got {value}"):
        gr.register_backbone("own_net", **{option: value})
