"""Weights fit or are refused; torchvision is imported late, also where its operators do not fit."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import grandrounds
from grandrounds.errors import ConfigurationError
from grandrounds.models.registry import build_model
from grandrounds.models.split import find_stem, head_name, head_of
from grandrounds.models.weights import load_weights
from grandrounds.protocol.problem import ModelSpec

GREY = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))


def undeclared(backbone: str, **options) -> ModelSpec:
    """A network whose weights are in a file that does not declare a normalisation of images."""
    return ModelSpec(backbone, intensities="scaled", **options)


def saved(model: nn.Module, path) -> str:
    torch.save(model.state_dict(), path)
    return str(path)


@pytest.fixture
def compact_file(tmp_path):
    return saved(build_model(ModelSpec("compact", classes=4), seed=1), tmp_path / "compact.pt")


def test_a_file_replaces_every_entry(compact_file):
    model = build_model(undeclared("compact", classes=4, weights=compact_file), seed=2)
    expected = build_model(ModelSpec("compact", classes=4), seed=1).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_a_state_dict_inside_a_checkpoint_is_found(tmp_path):
    expected = build_model(ModelSpec("compact", classes=4), seed=1).state_dict()
    torch.save({"state_dict": expected, "round": 7}, tmp_path / "checkpoint.pt")
    model = build_model(undeclared("compact", classes=4, weights=str(tmp_path / "checkpoint.pt")), seed=2)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(("backbone", "side"), [("compact", 32), ("efficientnet_b0", 64)])
def test_a_head_of_another_class_count_stays_untrained_with_a_log_message(tmp_path, caplog, backbone, side):
    source = build_model(ModelSpec(backbone, classes=4), seed=1)
    path = saved(source, tmp_path / "four.pt")
    with caplog.at_level(logging.INFO):
        model = build_model(undeclared(backbone, classes=3, weights=path), seed=2)
    fresh = build_model(ModelSpec(backbone, classes=3), seed=2)
    assert "is for 4 classes; ours starts untrained" in caplog.text
    assert all(torch.equal(a, b) for a, b in zip(head_of(model).parameters(), head_of(fresh).parameters(), strict=True))
    kept = [name for name in model.state_dict() if not name.startswith("classifier.")]
    assert all(torch.equal(model.state_dict()[name], source.state_dict()[name]) for name in kept)


def test_head_dropout_does_not_stop_a_file_without_it(compact_file):
    model = build_model(undeclared("compact", classes=4, weights=compact_file, dropout=0.5), seed=2)
    expected = build_model(ModelSpec("compact", classes=4), seed=1).state_dict()
    assert torch.equal(model.state_dict()["classifier.weight"], expected["classifier.weight"])


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_a_grey_image_gives_the_same_in_any_number_of_channels(compact_file, channels):
    source = build_model(ModelSpec("compact", classes=4), seed=1).eval()
    model = build_model(undeclared("compact", classes=4, channels=channels, weights=compact_file), seed=2).eval()
    expected = source(GREY.expand(2, 3, 32, 32))
    torch.testing.assert_close(model(GREY.expand(2, channels, 32, 32)), expected, atol=1e-5, rtol=1e-4)


def test_group_norm_takes_scales_and_shifts_and_leaves_the_statistics(tmp_path):
    source = build_model(ModelSpec("compact", classes=4), seed=1)
    with torch.no_grad():
        source.stem[1].weight.fill_(3.0)
    path = saved(source, tmp_path / "batch.pt")
    model = build_model(undeclared("compact", classes=4, norm="group", weights=path), seed=2)
    assert model.stem[1].weight.tolist() == [3.0] * 16
    assert all(torch.equal(tensor, source.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_a_group_norm_file_lacks_the_statistics_of_batch_norm(tmp_path):
    path = saved(build_model(ModelSpec("compact", classes=4, norm="group"), seed=1), tmp_path / "group.pt")
    with pytest.raises(ConfigurationError, match=r"compact: 20.*stem\.1\.running_mean"):
        build_model(undeclared("compact", classes=4, weights=path), seed=1)


def test_densenets_published_names_are_understood_and_missing_counters_forgiven(tmp_path):
    source = build_model(ModelSpec("densenet121", classes=3), seed=1)
    old = {
        name.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): tensor
        for name, tensor in source.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, tmp_path / "old.pth")
    model = build_model(undeclared("densenet121", classes=3, weights=str(tmp_path / "old.pth")), seed=2)
    assert all(torch.equal(tensor, source.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: s.pop("blocks.0.residual.0.weight"),
            r"does not fit compact: 1 missing: blocks\.0\.residual\.0\.weight$",
        ),
        (lambda s: s.update(extra=torch.zeros(1)), "does not fit compact: 1 unexpected: extra$"),
        (
            lambda s: s.update({"stem.1.bias": torch.zeros(5)}),
            r"1 of another shape: stem\.1\.bias \(\(5,\), expected \(16,\)\)$",
        ),
        (lambda s: s.pop("classifier.weight"), r"1 missing: classifier\.weight$"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path, change, message):
    state = build_model(ModelSpec("compact", classes=4), seed=1).state_dict()
    change(state)
    torch.save(state, tmp_path / "state.pt")
    with pytest.raises(ConfigurationError, match=message):
        build_model(undeclared("compact", classes=4, weights=str(tmp_path / "state.pt")), seed=1)


def test_a_refused_file_leaves_the_model_as_it_was(compact_file):
    model = build_model(ModelSpec("resnet18", classes=4), seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ConfigurationError, match="does not fit resnet18"):
        load_weights(model, undeclared("resnet18", classes=4, weights=compact_file))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("content", [b"", b"no checkpoint at all", b"\x80\x02garbage", b"PK\x03\x04 half an archive"])
def test_a_damaged_file_is_refused(tmp_path, content):
    (tmp_path / "bad.pt").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"bad\.pt.*torch\.save"):
        build_model(undeclared("compact", classes=4, weights=str(tmp_path / "bad.pt")), seed=1)


def test_a_whole_pickled_model_is_refused(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "model.pt")
    with pytest.raises(ConfigurationError, match=r"model\.pt cannot be read"):
        build_model(undeclared("compact", classes=4, weights=str(tmp_path / "model.pt")), seed=1)


def test_a_file_without_tensors_is_refused(tmp_path):
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ConfigurationError, match=r"list\.pt holds no state_dict"):
        build_model(undeclared("compact", classes=4, weights=str(tmp_path / "list.pt")), seed=1)


def test_a_missing_file_is_named():
    with pytest.raises(ConfigurationError, match=r"there is no file nowhere/weights\.pt"):
        build_model(undeclared("compact", classes=4, weights="nowhere/weights.pt"), seed=1)


def test_the_compact_network_has_no_imagenet_weights():
    with pytest.raises(ConfigurationError, match="backbone 'compact'"):
        build_model(ModelSpec("compact", classes=4, weights="imagenet"), seed=1)


def test_stem_and_head_are_found_by_their_place():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1), nn.Flatten(), nn.Linear(2, 2))
    assert find_stem(model)[0] == "0"
    assert head_name(model) == "3"
    with pytest.raises(ValueError, match="Linear has no convolution"):
        find_stem(nn.Linear(2, 2))


PACKAGES = str(Path(grandrounds.__file__).parents[1])

# What a torchvision built for CUDA does beside a CPU-only torch: half of it is loaded when it asks for its operators.
BROKEN = """
import torchvision.half
import torch
torch.library.register_fake("torchvision::nms")(lambda dets, scores, iou_threshold: dets)
torch.library.register_fake("torchvision::qnms")(lambda dets, scores, iou_threshold: dets)
"""


def run(script: str, *first_on_the_path: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*first_on_the_path, PACKAGES])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fake_torchvision(folder: Path, source: str) -> str:
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(source)
    (folder / "torchvision" / "half.py").write_text("import torch")
    return str(folder)


def test_the_registry_imports_it_only_when_it_builds_one_of_its_networks():
    output = run("""
import sys, torch
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
build_model(ModelSpec("compact", classes=3), seed=1)
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torchvision", "monai", "nvflare"}))
print(build_model(ModelSpec("resnet18", classes=3), seed=1).eval()(torch.zeros(1, 3, 64, 64)).shape)
from grandrounds.models.backbones.libraries import import_torchvision
assert import_torchvision() is import_torchvision() is sys.modules["torchvision"]
""")
    assert output == "[]\ntorch.Size([1, 3])\n"


def test_missing_operators_are_declared_and_the_import_repeated(tmp_path):
    output = run(
        """
import sys
try:
    import torchvision
except RuntimeError as error:
    print(error)
from grandrounds.models.backbones.libraries import import_torchvision
half = sys.modules["torchvision.half"]
module = import_torchvision()
print(module.__file__ is not None, sys.modules["torchvision.half"] is not half)
""",
        fake_torchvision(tmp_path, BROKEN),
    )
    assert output == "operator torchvision::nms does not exist\nTrue True\n"


def test_another_failure_passes_through_after_one_attempt(tmp_path):
    output = run(
        """
from grandrounds.models.backbones.libraries import import_torchvision
try:
    import_torchvision()
except RuntimeError as error:
    print(error)
""",
        fake_torchvision(tmp_path, 'print("attempt")\nraise RuntimeError("something else")'),
    )
    assert output == "attempt\nsomething else\n"
