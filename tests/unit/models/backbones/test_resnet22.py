"""ResNet-22 has the published sizes, and the same gradients and statistics whether activations are kept or not."""

import pytest
import torch
from torch import nn

from grandrounds.errors import ConfigurationError
from grandrounds.models.backbones.resnet22 import ResNet22, recompute_activations
from grandrounds.models.registry import build_model
from grandrounds.models.split import split_network
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import torch_generator


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def network(**options) -> ResNet22:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return ResNet22(2, 1, **options)


def images(samples: int, side: int = 128) -> torch.Tensor:
    return torch.randn(samples, 1, side, side, generator=torch_generator("images"))


def test_every_part_has_its_published_number_of_parameters():
    model = network()
    blocks = [4_928, 4_672, 14_432, 18_560, 57_536, 73_984, 229_760, 295_424, 918_272, 1_180_672]
    assert [count(part) for part in (model.stem, *model.blocks, model.norm)] == [784, *blocks, 512]
    assert count(split_network(model).encoder) == 2_799_536
    assert count(model.classifier) == 41_666
    assert count(model) == 2_841_202


def test_the_state_has_147_entries():
    state = network().state_dict()
    counters = [name for name, tensor in state.items() if not tensor.is_floating_point()]
    statistics = [tensor.numel() for name, tensor in state.items() if "running_" in name]
    assert (len(state), len(counters), sum(statistics)) == (147, 23, 4_384)


def test_maps_of_a_mammogram_have_the_published_sizes():
    model = network().to("meta")
    maps, shapes = torch.empty(1, 1, 2048, 2048, device="meta"), []
    for part in (*model.stem, *model.blocks):
        maps = part(maps)
        shapes.append(tuple(maps.shape[1:3]))
    assert shapes[:2] == [(16, 1021), (16, 510)]
    assert shapes[3::2] == [(16, 510), (32, 255), (64, 128), (128, 64), (256, 32)]
    assert split_network(model).encoder(torch.empty(2, 1, 2048, 2048, device="meta")).shape == (2, 256)


def test_a_forward_pass_of_a_mammogram_takes_12_billion_multiply_adds():
    from torch.utils.flop_counter import FlopCounterMode

    model = network().to("meta").eval()
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 1, 2048, 2048, device="meta"))
    assert counter.get_total_flops() / 2 == pytest.approx(11.85e9, rel=0.01)


def test_the_shortcut_of_a_first_block_reads_the_rectified_input():
    block = network().blocks[2].eval()
    block.conv2.weight.data.zero_()
    maps = images(2, 8).expand(-1, 16, -1, -1)
    torch.testing.assert_close(block(maps), block.shortcut(torch.relu(block.norm1(maps))))


def test_the_second_block_of_a_stage_adds_its_unchanged_input():
    block = network().blocks[3].eval()
    block.conv2.weight.data.zero_()
    maps = images(2, 8).expand(-1, 32, -1, -1)
    assert float(maps.min()) < 0
    assert torch.equal(block(maps), maps)


def test_an_embedding_is_the_mean_of_the_rectified_maps():
    model = network().eval()
    last = torch.tensor([[4.0, 0.0], [-8.0, 0.0]]).expand(1, 256, 2, 2)
    model.blocks[-1].register_forward_hook(lambda *_: last)
    # At the start the last batch norm leaves values alone, but for its epsilon.
    torch.testing.assert_close(split_network(model).encoder(images(1)), torch.ones(1, 256), atol=1e-4, rtol=0)


def test_the_classifier_drops_half_of_two_hidden_layers():
    drops = [module.p for module in network().classifier if isinstance(module, nn.Dropout)]
    assert drops == [0.5, 0.5]


def test_noise_on_images_has_a_deviation_of_a_hundredth():
    added = network().noise(torch.zeros(1, 1, 200, 200))
    assert float(added.std()) == pytest.approx(0.01, rel=0.03)


def test_one_image_cannot_be_trained_on():
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        network()(images(1))


@pytest.mark.parametrize("side", [64, 128, 200])
def test_smaller_images_do(side):
    assert network().eval()(images(2, side)).shape == (2, 2)


def test_constant_images_give_finite_gradients():
    model = network(input_noise=0.0)
    model(torch.zeros(2, 1, 128, 128)).square().sum().backward()
    assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in model.parameters())


def test_images_get_noise_in_training_only():
    model, batch = network(), images(2)
    encoder = split_network(model).encoder
    assert not torch.equal(encoder(batch), encoder(batch))
    model.eval()
    assert torch.equal(encoder(batch), encoder(batch))
    quiet = split_network(network(input_noise=0.0)).encoder
    assert torch.equal(quiet(batch), quiet(batch))


def step(model: ResNet22) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        model(images(3).double()).square().sum().backward()
    gradients = {f"gradient of {name}": parameter.grad for name, parameter in model.named_parameters()}
    return {**gradients, **model.state_dict()}


def test_recomputed_activations_change_neither_gradients_nor_statistics():
    kept, recomputed = network().double(), network().double()
    recompute_activations(recomputed)
    expected, found = step(kept), step(recomputed)
    assert int(found["norm.num_batches_tracked"]) == 1
    assert len(found) == len(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=name)


def stored_bytes(model: ResNet22) -> int:
    """What the graph of a pass keeps, parameters aside."""
    own = {parameter.data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in own:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(images(2, 256))
    assert logits.requires_grad
    return sum(sizes.values())


def test_recomputed_activations_are_not_kept():
    kept, recomputed = network(), network()
    recompute_activations(recomputed)
    assert stored_bytes(recomputed) < stored_bytes(kept) / 2


def test_another_network_cannot_recompute():
    with pytest.raises(ConfigurationError, match="expected backbone resnet22, got CompactNet"):
        recompute_activations(build_model(ModelSpec("compact", 2), seed=1))
