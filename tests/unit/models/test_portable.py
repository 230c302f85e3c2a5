"""A model in other formats gives the same logits, for another number of images too."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.models.inference import portable
from grandrounds.models.inference.portable import write_portable
from grandrounds.models.norm import adapt_statistics
from grandrounds.models.registry import BACKBONES, build_model, minimum_image_size
from grandrounds.protocol.problem import Problem

PROBLEM = Problem.from_dict({"classes": ["a", "b", "c"], "image_size": 32, "dataset": "phantom", "backbone": "compact"})
IMAGES = np.random.default_rng(0).random((5, 3, 32, 32), dtype=np.float32)


@pytest.fixture(scope="module")
def network():
    return build_model(PROBLEM.model_spec(pretrained=False), seed=1).eval()


def test_torchscript_gives_the_same_logits(network, tmp_path):
    loaded = torch.jit.load(write_portable(network, PROBLEM, "torchscript", tmp_path))
    with torch.no_grad():
        torch.testing.assert_close(loaded(torch.from_numpy(IMAGES)), network(torch.from_numpy(IMAGES)))


def test_torchscript_has_the_same_bytes_again_and_no_path_of_this_machine(network, tmp_path):
    first, again = (write_portable(network, PROBLEM, "torchscript", tmp_path).read_bytes() for _ in range(2))
    assert first == again
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert not [
            name for name in archive.namelist() if str(Path(portable.__file__).parent).encode() in archive.read(name)
        ]


def test_onnx_gives_the_same_logits(network, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(write_portable(network, PROBLEM, "onnx", tmp_path, ["risk"])))
    (found,) = session.run(["risk"], {"images": IMAGES})
    with torch.no_grad():
        np.testing.assert_allclose(found, network(torch.from_numpy(IMAGES)).numpy(), rtol=1e-4, atol=1e-5)


SIDES = (32, 96, 112, 224)
LARGE = ("densenet121", "efficientnet_b0")


def cases() -> list:
    """Every backbone at a size with odd sides on the way, as ONNX, and all sizes, heads and formats as slow ones.

    The usual network also has every head as ONNX, and the largest one as TorchScript.
    """
    found = []
    for backbone in sorted(BACKBONES):
        sides = [side for side in SIDES if side >= minimum_image_size(backbone)]
        for head in ("linear", "depths", *(["mlp:8"] if backbone == "efficientnet_lite0" else [])):
            for side in sides:
                odd = side == (112 if 112 in sides else sides[0])
                usual = backbone == "efficientnet_lite0"  # the network of most presets
                quick = odd and ((head == "depths" and backbone not in LARGE) or usual)
                for form, fast in (("onnx", quick), ("torchscript", odd and usual and head == "depths")):
                    found.append(pytest.param(backbone, head, side, form, marks=[] if fast else pytest.mark.slow))
    return found


@pytest.mark.parametrize(("backbone", "head", "side", "form"), cases())
def test_every_backbone_and_head_gives_the_same_logits_at_every_size(backbone, head, side, form, tmp_path):
    """With statistics of the images themselves: with those of an initialisation the logits hardly depend on an image."""
    if form == "onnx":
        runtime = pytest.importorskip("onnxruntime")
    content = {"classes": ["a", "b", "c"], "image_size": side, "dataset": "phantom", "backbone": backbone, "head": head}
    problem = Problem.from_dict(content)
    network = build_model(problem.model_spec(pretrained=False), seed=1)
    batch = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    batch[1, :, : side // 2] *= 0.2
    adapt_statistics(network, [batch])
    with torch.no_grad():
        expected = network(batch).numpy()
    path = write_portable(network, problem, form, tmp_path, ["logits"])
    if form == "onnx":
        (found,) = runtime.InferenceSession(str(path)).run(["logits"], {"images": batch.numpy()})
    else:
        found = torch.jit.load(path)(batch).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3 * np.abs(expected).max())
    assert np.ptp(expected, axis=0).max() > 0.02 * np.abs(expected).max()


class Counting(nn.Module):
    """Depends on how often it was called, which no format can hold."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, images):
        self.calls += 1
        return images.mean((2, 3)) * self.calls


def test_a_network_that_computes_something_else_is_not_written(tmp_path):
    with pytest.raises(GrandRoundsError, match="gives other numbers than Counting"):
        write_portable(Counting(), PROBLEM, "torchscript", tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_is_refused(network, tmp_path):
    with pytest.raises(ConfigurationError, match="must be one of torchscript, onnx, got 'coreml'"):
        write_portable(network, PROBLEM, "coreml", tmp_path)
