"""Networks of MONAI, timm and torchvision by name: built, divided and trained like others, or refused by name."""

import json
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from grandrounds.errors import ConfigurationError
from grandrounds.models.backbones import libraries
from grandrounds.models.pretrained import add_file
from grandrounds.models.registry import build_model, is_backbone, minimum_image_size, require_buildable
from grandrounds.plugins import NETWORKS_VARIABLE, Distribution
from grandrounds.protocol.problem import ModelSpec

SMALL = {"monai:resnet10": 64, "torchvision:shufflenet_v2_x0_5": 64, "timm:test_resnet": 64, "timm:test_vit": 160}


@pytest.mark.parametrize(("name", "side"), SMALL.items())
@pytest.mark.parametrize("channels", [1, 3])
def test_a_network_of_a_library_gives_logits_and_trains_its_head_alone(name, side, channels):
    if name.startswith("timm"):
        pytest.importorskip("timm")
    assert minimum_image_size(name) == side
    spec = ModelSpec(name, classes=5, channels=channels)
    model = build_model(spec, seed=1)
    assert model(torch.rand(2, channels, side, side)).shape == (2, 5)
    again = build_model(spec, seed=1).state_dict()
    assert all(torch.equal(again[entry], value) for entry, value in build_model(spec, seed=1).state_dict().items())
    frozen = build_model(ModelSpec(name, classes=5, channels=channels, trainable="head"), seed=1)
    assert [entry for entry, _ in frozen.named_parameters()] == ["head.weight", "head.bias"]


def test_weights_are_a_safetensors_file_by_its_name_and_digest(tmp_path, monkeypatch):
    monkeypatch.setenv("GRANDROUNDS_WEIGHTS", str(tmp_path / "weights"))
    published = libraries.NETWORK_LIBRARIES["torchvision"].build("shufflenet_v2_x0_5", 1000, 3)
    save_file(published.state_dict(), tmp_path / "published.safetensors")
    file = add_file(tmp_path / "published.safetensors", "shuffle", "imagenet", "BSD-3-Clause")
    assert file.path.name == f"shuffle-{file.sha256}.pt"
    model = build_model(ModelSpec("torchvision:shufflenet_v2_x0_5", classes=3, weights="shuffle"), seed=1)
    for name, value in published.state_dict().items():
        if not name.startswith("fc."):
            assert torch.equal(model.state_dict()[f"encoder.{name}"], value)
    file.path.write_bytes(file.path.read_bytes() + b" ")
    with pytest.raises(ConfigurationError, match="is damaged or another file"):
        build_model(ModelSpec("torchvision:shufflenet_v2_x0_5", classes=3, weights="shuffle"), seed=1)


def test_an_unknown_name_is_refused_with_near_ones():
    with pytest.raises(ConfigurationError, match="network 'DenseNet12'"):
        require_buildable(ModelSpec("monai:DenseNet12", classes=2))
    with pytest.raises(ConfigurationError, match="has no network 'unet'"):  # gives no logits
        require_buildable(ModelSpec("monai:unet", classes=2))
    with pytest.raises(ConfigurationError, match="has no network 'googlenet'"):
        require_buildable(ModelSpec("torchvision:googlenet", classes=2))
    with pytest.raises(ConfigurationError, match="monai:NAME, timm:NAME, torchvision:NAME"):
        require_buildable(ModelSpec("keras:resnet", classes=2))


def test_a_library_that_is_not_installed_is_named_with_the_way_on(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigurationError, match=r"installed.*'grandrounds\[timm\]'"):
        require_buildable(ModelSpec("timm:no_such_library", classes=2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dropout_at": "layers", "dropout": 0.1}, "has no dropout in its layers"),
        ({"trainable": "from:3"}, "has no block '3' to train from; train all, or the head"),
        ({"weights": "imagenet"}, "no ImageNet weights for backbone 'monai:resnet10'.*: set weights to a file"),
    ],
)
def test_what_networks_of_libraries_do_not_have_is_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        build_model(ModelSpec("monai:resnet10", classes=2, **changes), seed=1)


def test_a_transformer_takes_images_of_one_size():
    for side in (64, 256):
        with pytest.raises(
            ConfigurationError, match=rf"image_size must be 224, the only size for .*vit_b_16, got {side}"
        ):
            require_buildable(ModelSpec("torchvision:vit_b_16", classes=2), side)
    require_buildable(ModelSpec("torchvision:vit_b_16", classes=2), 224)


def test_a_network_without_a_last_linear_layer_is_refused():
    with pytest.raises(ConfigurationError, match="SqueezeNet has no linear layer with 2 outputs"):
        build_model(ModelSpec("torchvision:squeezenet1_1", classes=2), seed=1)


def test_in_a_kit_only_listed_networks_of_the_reviewed_library_are_built(monkeypatch):
    library = libraries.library_of("monai:resnet10")
    monkeypatch.setenv(NETWORKS_VARIABLE, json.dumps({"monai:resnet10": library}))
    assert isinstance(build_model(ModelSpec("monai:resnet10", classes=2), seed=1), nn.Module)
    assert is_backbone("monai:resnet10")
    assert not is_backbone("monai:resnet18")
    with pytest.raises(
        ConfigurationError, match=r"monai:resnet18 is not listed in this kit.*overlay KIT --network monai:resnet18"
    ):
        require_buildable(ModelSpec("monai:resnet18", classes=2))
    monkeypatch.setenv(NETWORKS_VARIABLE, json.dumps({"monai:resnet10": Distribution("monai", "0.1", library.record)}))
    with pytest.raises(ConfigurationError, match=r"monai 0\.1 is listed in this kit, but version"):
        require_buildable(ModelSpec("monai:resnet10", classes=2))
