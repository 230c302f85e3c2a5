"""Losses in single precision at least; compiled networks compute what plain ones do."""

import copy
import os

import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.models.registry import build_model
from grandrounds.models.split import compile_network, split_network
from grandrounds.protocol.problem import ModelSpec
from grandrounds.protocol.tensors import at_least_single
from grandrounds.seeding import torch_generator


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_half_precision_is_widened_and_nothing_is_narrowed(given, expected):
    values = torch.tensor([0.1, -3.0]).to(given)
    wide = at_least_single(values)
    assert wide.dtype == expected
    assert torch.equal(wide.double(), values.double())


BACKBONES = ("compact", "resnet9", "shufflenet", "resnet22")


@pytest.fixture
def networks(request):
    """A compiled network, its plain twin, and what counts the graphs of the first."""
    torch._dynamo.reset()
    backbone, _, head = request.param.partition(" with ")
    plain = build_model(ModelSpec(backbone, 5, dropout=0.3, head=head or "linear"), seed=1).train()
    from torch._dynamo.testing import CompileCounterWithBackend  # seconds, which most files need not spend

    network, counter = copy.deepcopy(plain), CompileCounterWithBackend("aot_eager")
    compile_network(network, counter)
    yield network, plain, counter
    torch._dynamo.reset()


def gradients(network, parts=False):
    images = torch.rand(4, 3, 48, 48, generator=torch_generator("images"))
    encoder, head = split_network(network)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        (head(encoder(images)) if parts else network(images)).square().sum().backward()
    return {name: parameter.grad for name, parameter in network.named_parameters()}


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("networks", [*BACKBONES, "compact with depths"], indirect=True)
def test_a_step_is_the_same_and_one_graph(networks, parts):
    network, plain, counter = networks
    found, expected = gradients(network, parts), gradients(plain)
    assert counter.frame_count == 1
    scale = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5 * scale, msg=name)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], value, msg=name)


@pytest.mark.parametrize("networks", ["compact"], indirect=True)
def test_a_copy_and_its_parts_are_plain(networks):
    network, _, counter = networks
    for parts in (False, True):
        gradients(copy.deepcopy(network), parts)
    assert counter.frame_count == 0


@pytest.mark.parametrize("mode", [0o777, 0o707])
def test_code_that_others_may_have_compiled_is_not_run(monkeypatch, tmp_path, mode):
    """Torch keeps what it compiles in a folder of a known name among all users' temporary files."""
    folder = tmp_path / "torchinductor_hospital"
    folder.mkdir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    monkeypatch.setattr("shutil.which", lambda name: name)
    network = build_model(ModelSpec("compact", 5), seed=1)
    compile_network(network, "inductor")
    folder.chmod(mode)
    with pytest.raises(ConfigurationError, match="TORCHINDUCTOR_CACHE_DIR"):
        compile_network(network, "inductor")
    folder.chmod(0o700)
    user = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: user + 1)
    with pytest.raises(ConfigurationError, match="another user's"):
        compile_network(network, "inductor")


def test_a_missing_c_compiler_is_reported_before_compilation(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    network = build_model(ModelSpec("compact", 5), seed=1)
    with pytest.raises(ConfigurationError, match=r"compiler=inductor.*compiler=none"):
        compile_network(network, "inductor")
    compile_network(network, "aot_eager")
