"""A folded copy predicts the same, frozen, and leaves the model alone."""

import copy

import pytest
import torch
from torch import nn

from grandrounds.models.inference import folded_copy
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec

IMAGES = torch.rand(8, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads that wait for each other on a busy machine take longer than one alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(backbone: str, norm: str = "batch") -> nn.Module:
    """A model whose statistics, scales and shifts are not those it began with."""
    model = build_model(ModelSpec(backbone, classes=5, norm=norm), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.uniform_(-0.5, 0.5, generator=generator)
        for _ in range(3):
            model(IMAGES)
    return model


def batch_norms(model: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())


@pytest.mark.parametrize(
    ("backbone", "left"), [("compact", 0), ("efficientnet_b0", 0), ("resnet18", 17), ("densenet121", 120)]
)
def test_outputs_are_equal_up_to_rounding(backbone, left):
    model = trained(backbone)
    folded = folded_copy(model)
    assert batch_norms(folded) == left
    expected = model.eval()(IMAGES).detach()
    torch.testing.assert_close(folded(IMAGES), expected, atol=1e-5 * float(expected.abs().max()), rtol=1e-5)


def test_the_model_itself_is_neither_changed_nor_frozen():
    model = trained("compact")
    before = copy.deepcopy(model.state_dict())
    folded = folded_copy(model)
    with torch.no_grad():
        for parameter in folded.parameters():
            parameter.zero_()
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_copy_is_in_evaluation_mode_without_gradients():
    folded = folded_copy(trained("compact"))
    assert not any(module.training for module in folded.modules())
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert not folded(IMAGES).requires_grad


def test_a_sequential_with_a_forward_of_its_own_is_not_folded():
    class Backwards(nn.Sequential):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self[0](self[1](images))

    model = Backwards(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).eval()
    with torch.no_grad():
        model[1].running_mean.fill_(0.4)
    folded = folded_copy(model)
    assert batch_norms(folded) == 1
    torch.testing.assert_close(folded(IMAGES), model(IMAGES).detach())


def test_group_norm_stays():
    model = trained("compact", norm="group")
    torch.testing.assert_close(folded_copy(model)(IMAGES), model.eval()(IMAGES).detach())
