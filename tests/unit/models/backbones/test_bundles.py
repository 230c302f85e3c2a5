"""MONAI bundles as weights: read without running anything of them, or refused with what is wrong."""

import json

import pytest
import torch
import yaml
from safetensors.torch import save_file

from grandrounds.errors import ConfigurationError
from grandrounds.models.backbones.bundles import read_bundle
from grandrounds.models.pretrained import add_file
from grandrounds.models.registry import build_model, chosen_intensities
from grandrounds.plugins import NETWORKS_VARIABLE
from grandrounds.protocol.problem import ModelSpec

DEFINITION = {"_target_": "resnet10", "spatial_dims": 2, "n_input_channels": 3, "num_classes": 4}
NETWORK = "monai:resnet10"


@pytest.fixture
def bundle(tmp_path):
    """A bundle of MONAI's resnet10 for four classes."""
    folder = tmp_path / "bundle"
    for name in ("configs", "models"):
        (folder / name).mkdir(parents=True)
    from monai.networks.nets import resnet10  # seconds, which the collection of tests need not spend

    torch.save(resnet10(spatial_dims=2, n_input_channels=3, num_classes=4).state_dict(), folder / "models" / "model.pt")
    metadata = {"network_data_format": {"inputs": {"image": {"value_range": [0, 1]}}}}
    (folder / "configs" / "metadata.json").write_text(json.dumps(metadata))
    write(folder, DEFINITION)
    return folder


def write(folder, definition, **more):
    (folder / "configs" / "inference.json").write_text(json.dumps({**more, "network_def": definition}))


def assert_has_the_weights(folder, classes=4, **options):
    model = build_model(ModelSpec(NETWORK, classes=classes, **options), seed=1)
    for name, value in torch.load(folder / "models" / "model.pt", weights_only=True).items():
        if not name.startswith("fc."):
            assert torch.equal(model.state_dict()[f"encoder.{name}"], value), name
        else:
            assert torch.equal(model.state_dict()[name.replace("fc", "head")], value) == (classes == 4)


@pytest.mark.parametrize("classes", [4, 3])
def test_a_bundle_is_the_start_of_its_network_with_its_head_or_another(bundle, classes):
    assert_has_the_weights(bundle, classes, weights=str(bundle))
    assert chosen_intensities(ModelSpec(NETWORK, classes=3, weights=str(bundle))) == "scaled"


def test_a_bundle_is_added_under_a_name_that_knows_its_network(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("GRANDROUNDS_WEIGHTS", str(tmp_path / "weights"))
    added = add_file(bundle, "four", None, "Apache-2.0")
    assert_has_the_weights(bundle, weights="four")
    with pytest.raises(ConfigurationError, match=f"is of the network {NETWORK}: set problem.backbone={NETWORK}, got"):
        build_model(ModelSpec("monai:resnet18", classes=4, weights="four"), seed=1)
    added.path.write_bytes(added.path.read_bytes() + b" ")
    with pytest.raises(ConfigurationError, match="is damaged or another file"):
        build_model(ModelSpec(NETWORK, classes=4, weights="four"), seed=1)


def test_safetensors_come_first_and_a_configuration_may_be_yaml(bundle):
    state = torch.load(bundle / "models" / "model.pt", weights_only=True)
    save_file({name: value + 1 for name, value in state.items()}, bundle / "models" / "model.safetensors")
    torch.save({name: value + 1 for name, value in state.items()}, bundle / "models" / "model.pt")
    (bundle / "configs" / "inference.json").rename(bundle / "configs" / "train.yaml")
    (bundle / "configs" / "train.yaml").write_text(yaml.safe_dump({"network_def": DEFINITION}))
    assert_has_the_weights(bundle, weights=str(bundle))
    (bundle / "models" / "model.pt").unlink()
    assert read_bundle(bundle).weights.suffix == ".safetensors"


@pytest.mark.parametrize(
    ("target", "arguments", "backbone"),
    [
        ("DenseNet121", {"spatial_dims": "@dims", "out_channels": 2, "pretrained": True}, "monai:DenseNet121"),
        ("monai.networks.nets.SEResNet50", {"spatial_dims": 2, "in_channels": 1, "num_classes": 2}, "monai:SEResNet50"),
        ("monai.networks.nets.senet.SEResNet50", {"spatial_dims": 2}, "monai:SEResNet50"),
        ("torchvision.models.resnet50", {"num_classes": 2, "weights": None}, "torchvision:resnet50"),
        ("torchvision.models.resnet.resnet50", {}, "torchvision:resnet50"),
        ("timm.create_model", {"model_name": "test_resnet", "num_classes": 2}, "timm:test_resnet"),
    ],
)  # fmt: skip
def test_a_network_has_the_name_that_it_has_here(bundle, target, arguments, backbone):
    if target.startswith("timm"):
        pytest.importorskip("timm")
    write(bundle, {"_target_": target, **arguments}, dims=2)
    assert read_bundle(bundle).backbone == backbone


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ({"_target_": "os.system", "command": "touch ran"}, "_target_ 'os.system' is no network that a bundle may name"),
        ({"_target_": "scripts.net.Own"}, "'scripts.net.Own' is no network that a bundle may name"),
        ({"_target_": "monai.bundle.run"}, "'monai.bundle.run' is no network that a bundle may name"),
        ({"_target_": "torchvision.models.get_model", "name": "resnet18"}, "name: a network has the arguments that"),
        ({"_target_": "timm.create_model", "model_name": "no_such"}, "timm has no network 'no_such'"),
        ({"_target_": "UNet", "spatial_dims": 2}, "monai has no network 'UNet'"),
        ({**DEFINITION, "_target_": "$__import__('os').system('touch ran')"}, "expressions are not evaluated"),
        ({**DEFINITION, "num_classes": "$__import__('os').system('touch ran')"}, "num_classes is .* write its value"),
        ({**DEFINITION, "num_classes": "@count"}, r"num_classes is \"\$__.*mkdir.*expressions are not evaluated"),
        ({**DEFINITION, "num_classes": "%other.json"}, "num_classes is '%other.json', and expressions are not evaluated"),
        ({**DEFINITION, "spatial_dims": 3}, "spatial_dims must be 2, for images, got 3"),
        ({"_target_": "resnet10"}, "spatial_dims must be 2, for images, got None"),
        ({**DEFINITION, "act": "LEAKYRELU", "norm": "instance"}, "act, norm: a network has the arguments that"),
        ({"_target_": "torch.jit.load", "f": "model.ts"}, "is TorchScript, which cannot be trained"),
        ({"spatial_dims": 2}, "has no network_def with a _target_"),
        ("@network", "has no network_def with a _target_"),
    ],
)  # fmt: skip
def test_what_a_bundle_must_not_name_is_refused_and_nothing_of_it_runs(bundle, monkeypatch, definition, message):
    monkeypatch.chdir(bundle)
    if isinstance(definition, dict) and definition.get("_target_", "").startswith("timm"):
        pytest.importorskip("timm")
    write(bundle, definition, imports=["$__import__('os').system('touch ran')"], count="$__import__('os').mkdir('ran')")
    with pytest.raises(ConfigurationError, match=message):
        build_model(ModelSpec(NETWORK, classes=4, weights=str(bundle)), seed=1)
    assert not (bundle / "ran").exists()


def test_a_folder_that_is_no_bundle_is_refused(bundle, tmp_path):
    for path, message in (
        ("configs/metadata.json", "json"),
        ("configs/inference.json", "cannot be read"),
        ("models/model.pt", "cannot be read"),
    ):
        kept = (bundle / path).read_bytes()
        (bundle / path).write_bytes(b"[")
        with pytest.raises(ConfigurationError, match=message):
            build_model(ModelSpec(NETWORK, classes=4, weights=str(bundle)), seed=1)
        (bundle / path).write_bytes(kept)
    (bundle / "models" / "model.pt").unlink()
    with pytest.raises(ConfigurationError, match=r"folder.*models/model\.pt"):
        read_bundle(bundle)
    with pytest.raises(ConfigurationError, match=r"it has no configs/inference\.json"):
        read_bundle(tmp_path)


def test_in_a_kit_a_bundle_s_network_must_be_listed(bundle, monkeypatch):
    monkeypatch.setenv(NETWORKS_VARIABLE, "{}")
    with pytest.raises(
        ConfigurationError, match=rf"{NETWORK} is not listed in this kit.*overlay KIT --network {NETWORK}"
    ):
        read_bundle(bundle)
