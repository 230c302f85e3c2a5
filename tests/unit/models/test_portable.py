"""A model in other formats gives the same logits, for another number of images too."""

import numpy as np
import pytest
import torch
from torch import nn

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.models.portable import write_portable
from grandrounds.models.registry import build_model
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


def test_onnx_gives_the_same_logits(network, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(write_portable(network, PROBLEM, "onnx", tmp_path)))
    (found,) = session.run(["logits"], {"images": IMAGES})
    with torch.no_grad():
        np.testing.assert_allclose(found, network(torch.from_numpy(IMAGES)).numpy(), rtol=1e-4, atol=1e-5)


class Counting(nn.Module):
    """Depends on how often it was called, which no format can hold."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, images):
        self.calls += 1
        return images.mean((2, 3)) * self.calls


def test_a_network_that_computes_something_else_is_not_written(tmp_path):
    with pytest.raises(GrandRoundsError, match="gives other logits than Counting"):
        write_portable(Counting(), PROBLEM, "torchscript", tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_is_refused(network, tmp_path):
    with pytest.raises(ConfigurationError, match="must be one of torchscript, onnx, got 'coreml'"):
        write_portable(network, PROBLEM, "coreml", tmp_path)
