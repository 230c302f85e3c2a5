"""Normalisation layers: their entries, group norm, passes without statistics, and folding."""

import copy

import pytest
import torch
from torch import nn

from grandrounds.models.norm import folded_copy, norm_entries, normalises_by_batch, statistics_untouched
from grandrounds.models.norm_layers import replace_module, to_group_norm
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import torch_generator


def small_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8, eps=1e-2),
        nn.ReLU(inplace=True),
        nn.Sequential(nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)),
    )


def test_entries_are_scales_shifts_statistics_and_counters():
    kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert norm_entries(small_net()) == {f"{layer}.{kind}" for layer in ("1", "3.1") for kind in kinds}


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(4), nn.BatchNorm3d(4), nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm2d(4, affine=True)],
)
def test_every_kind_of_normalisation_counts_and_nothing_else_does(layer):
    assert norm_entries(nn.Sequential(nn.Linear(4, 4), layer)) == {f"1.{name}" for name in layer.state_dict()}
    assert norm_entries(layer) == set(layer.state_dict())


def test_resnet18_has_twenty_norms_and_none_of_its_convolutions_counts():
    model = build_model(ModelSpec("resnet18", classes=3), seed=1)
    entries = norm_entries(model)
    assert len(entries) == 20 * 5
    rest = model.state_dict().keys() - entries
    assert all(name == "fc.bias" or name.endswith("weight") for name in rest)
    assert len(rest) == 20 + 2


@pytest.mark.parametrize(
    ("channels", "groups"),
    [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 2),
        (7, 1),
        (15, 5),
        (16, 8),
        (24, 12),
        (32, 16),
        (64, 32),
        (96, 32),
        (1280, 32),
        (34, 17),
    ],
)
def test_groups_are_the_largest_divisor_that_leaves_two_channels_each(channels, groups):
    network = nn.Sequential(nn.BatchNorm2d(channels))
    to_group_norm(network)
    assert network[0].num_groups == groups


def test_group_norm_takes_over_scale_shift_and_epsilon():
    net = small_net()
    with torch.no_grad():
        net[1].weight.fill_(2.0)
        net[1].bias.fill_(-1.0)
    to_group_norm(net)
    norm = net[1]
    assert isinstance(norm, nn.GroupNorm)
    assert (norm.num_groups, norm.eps) == (4, 1e-2)
    assert norm.weight.tolist() == [2.0] * 8
    assert norm.bias.tolist() == [-1.0] * 8
    assert isinstance(net[3][1], nn.GroupNorm)


def test_norms_of_a_head_of_several_layers_are_replaced():
    head = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8, eps=1e-2), nn.ReLU())
    to_group_norm(head)
    assert isinstance(head[1], nn.GroupNorm)
    assert (head[1].num_groups, head[1].eps) == (4, 1e-2)
    assert not list(build_model(ModelSpec("resnet22", classes=2, channels=1, norm="group"), seed=1).buffers())


@pytest.mark.parametrize("backbone", ["compact", "resnet18"])
def test_no_batch_norm_is_left_and_the_output_of_one_image_ignores_the_others(backbone):
    model = build_model(ModelSpec(backbone, classes=3, norm="group"), seed=1)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert not list(model.buffers())
    images = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    model.eval()
    torch.testing.assert_close(model(images)[:1], model(images[:1]), atol=1e-4, rtol=1e-3)


def test_a_nested_module_can_be_replaced():
    net = small_net()
    replace_module(net, "3.0", nn.Identity())
    assert isinstance(net[3][0], nn.Identity)


BATCH = torch.randn(4, 3, 32, 32, generator=torch_generator("images"))


def test_outputs_are_the_same_and_no_entry_of_the_state_changes():
    network = build_model(ModelSpec("compact", 2), seed=1)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with statistics_untouched(network):
        quiet = network(BATCH)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert torch.equal(network(BATCH), quiet)
    assert not torch.equal(network.stem[1].running_mean, before["stem.1.running_mean"])


def test_statistics_are_noted_again_after_an_error():
    norm = nn.BatchNorm1d(2)
    with pytest.raises(ValueError, match="more than 1 value"), statistics_untouched(norm):
        norm(torch.zeros(1, 2))
    norm(torch.ones(2, 2))
    assert int(norm.num_batches_tracked) == 1
    assert norm.running_mean.tolist() == pytest.approx([0.1, 0.1])


def test_a_norm_that_never_notes_statistics_does_not_start_to():
    norm = nn.BatchNorm1d(2, track_running_stats=False)
    with statistics_untouched(norm):
        pass
    assert not norm.track_running_stats


@pytest.mark.parametrize(("norm", "expected"), [("batch", True), ("group", False)])
def test_networks_that_normalise_by_the_batch_are_known(norm, expected):
    assert normalises_by_batch(build_model(ModelSpec("compact", 2, norm=norm), seed=1)) is expected


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


def test_a_sequential_that_overrides_forward_is_not_folded():
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
