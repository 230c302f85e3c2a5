"""Names of normalisation entries, and group norm in the place of batch norm."""

import pytest
import torch
from torch import nn

from grandrounds.models.norm import group_count, norm_entries, replace_module, to_group_norm
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec


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
    assert group_count(channels) == groups


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


def test_the_norms_of_a_head_of_several_layers_are_replaced_as_well():
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
