"""MDH-FL's four networks have the published sizes without the unused projector, at any image size."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from grandrounds.models.backbones.mobile import ShuffleUnit
from grandrounds.models.norm import folded_copy
from grandrounds.models.registry import build_model, minimum_image_size
from grandrounds.models.split import head_of
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import torch_generator

# Parameters and megabytes of all entries, for thirteen classes.
SIZES = {
    "shufflenet": (889_985, 3.64),
    "resnet10": (4_904_781, 19.6),
    "mobilenetv2": (2_300_765, 9.34),
    "resnet12": (4_978_765, 19.9),
}


@pytest.fixture(scope="module")
def networks():
    return {name: build_model(ModelSpec(name, classes=13), seed=1) for name in SIZES}


def images(count, side, channels=3):
    return torch.rand(count, channels, side, side, generator=torch_generator("images"))


@pytest.mark.parametrize("name", sorted(SIZES))
def test_sizes_are_the_published_ones_without_projector_and_copies(networks, name):
    model, (parameters, megabytes) = networks[name], SIZES[name]
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    assert size / 1e6 == pytest.approx(megabytes, rel=0.003)
    storages = {tensor.data_ptr() for tensor in model.state_dict().values()}
    assert len(storages) == len(model.state_dict()), "an entry that is listed twice is sent twice"


@pytest.mark.parametrize("name", sorted(SIZES))
def test_every_parameter_is_used(networks, name):
    model = copy.deepcopy(networks[name])
    model(images(2, 16)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("side", [16, 29, 32, 40])
@pytest.mark.parametrize("name", sorted(SIZES))
def test_any_image_size_is_taken_and_the_last_map_is_an_eighth(networks, name, side):
    model = copy.deepcopy(networks[name]).eval()
    maps = []
    body = model.widen if name == "mobilenetv2" else model.units if name == "shufflenet" else model.blocks
    body.register_forward_hook(lambda _, __, output: maps.append(output))
    with torch.no_grad():
        logits = model(images(1, side))
    assert logits.shape == (1, 13)
    assert maps[0].shape[2:] == (-(-side // 8),) * 2
    # Average over positions, then the head: nothing is between.
    torch.testing.assert_close(logits, head_of(model)(maps[0].mean(dim=(2, 3))))


@pytest.mark.parametrize("name", sorted(SIZES))
def test_grey_images_are_taken_and_the_smallest_image_is_known(name):
    model = build_model(ModelSpec(name, classes=4, channels=1), seed=1).eval()
    assert model(images(1, 16, channels=1)).shape == (1, 4)
    assert minimum_image_size(name) == 16


@pytest.mark.parametrize("name", sorted(SIZES))
def test_folding_the_norms_changes_nothing_and_leaves_none(networks, name):
    model = copy.deepcopy(networks[name])
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(generator=torch_generator(name))
            module.running_var.uniform_(0.5, 2, generator=torch_generator(name))
    frozen = folded_copy(model)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in frozen.modules())
    with torch.no_grad():
        expected = model.eval()(images(2, 16))
        torch.testing.assert_close(frozen(images(2, 16)), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_stages_have_their_blocks(networks):
    assert [len(networks[name].blocks) for name in ("resnet10", "resnet12", "mobilenetv2")] == [4, 5, 17]
    assert len(networks["shufflenet"].units) == 16
    convolutions = {
        name: sum(isinstance(module, nn.Conv2d) for module in model.modules()) for name, model in networks.items()
    }
    # Stem and two per block, three projections; stem and three per unit; mobilenetv2: one block is 1 -> 6 without stride.
    assert convolutions["resnet10"] == 1 + 2 * 4 + 3
    assert convolutions["resnet12"] == 1 + 2 * 5 + 3
    assert convolutions["shufflenet"] == 1 + 3 * 16
    # Stem, last, three per block, shortcuts to 16, 24, 96 and 320 channels.
    assert convolutions["mobilenetv2"] == 2 + 3 * 17 + 4


def test_a_basic_block_adds_what_it_got(networks):
    block = copy.deepcopy(networks["resnet12"]).blocks[1].eval()
    values = torch.randn(1, 64, 5, 5, generator=torch_generator("block"))
    with torch.no_grad():
        block.residual[-1].weight.zero_()
        assert torch.equal(block(values), values.clamp_min(0))


def test_an_inverted_residual_is_linear_at_its_end_and_has_a_shortcut_without_stride_only(networks):
    blocks = copy.deepcopy(networks["mobilenetv2"]).blocks.eval()
    values = torch.randn(1, 24, 6, 6, generator=torch_generator("block"))
    with torch.no_grad():
        for block in (blocks[2], blocks[3]):
            block.residual[-1].weight.zero_()
        assert torch.equal(blocks[2](values), values)
        assert torch.equal(blocks[3](values), torch.zeros(1, 32, 3, 3))


def test_a_shuffle_unit_mixes_the_groups_and_pools_beside_a_stride():
    unit = ShuffleUnit(24, 200, 2, groups_in=1).eval()
    values = torch.randn(2, 24, 7, 7, generator=torch_generator("unit"))
    with torch.no_grad():
        result = unit(values)
    assert result.shape == (2, 200, 4, 4)
    torch.testing.assert_close(result[:, 176:], F.avg_pool2d(values, 3, 2, 1).clamp_min(0))
    same = ShuffleUnit(16, 16, 1, groups_in=2).eval()
    values = torch.randn(1, 16, 3, 3, generator=torch_generator("groups")).requires_grad_()
    same(values)[:, :8].sum().backward()
    assert (values.grad[:, 8:] != 0).any(), "the first half of the output sees the second half of the input"
    # Channels (0, 1 | 2, 3) of the two groups become (0, 2, 1, 3).
    order = same.shuffle(torch.arange(4.0).reshape(1, 4, 1, 1)).flatten().tolist()
    assert order == [0, 2, 1, 3]
