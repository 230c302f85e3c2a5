"""CompactNet is small, halves its maps four times and learns; ResNet-9 is FedMatch's, with its initial weights."""

import math

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from grandrounds.models.backbones.small_resnets import CompactNet, ResNet9
from grandrounds.models.registry import build_model, minimum_image_size
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import torch_generator


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads that wait for each other on a busy machine take longer than one alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_an_image_of_64_pixels_costs_ten_million_multiply_adds():
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        CompactNet(classes=8, channels=3)(torch.zeros(1, 3, 64, 64))
    assert counter.get_total_flops() / 2 == pytest.approx(10.1e6, rel=0.01)


@pytest.mark.parametrize(("side", "expected"), [(32, 2), (64, 4), (96, 6), (33, 3)])
def test_the_last_map_is_sixteen_times_smaller(side, expected):
    net = CompactNet(classes=8, channels=3)
    assert net.blocks(net.stem(torch.zeros(2, 3, side, side))).shape == (2, 96, expected, expected)


def test_a_block_adds_its_shortcut():
    block = CompactNet(classes=8, channels=3).blocks[0].eval()
    images = torch.rand(2, 16, 8, 8, generator=torch_generator("block"))
    with torch.no_grad():
        block.residual[-1].weight.zero_()
        expected = F.relu(block.shortcut(images))
        torch.testing.assert_close(block(images), expected)
    assert expected.any()


def test_it_learns_to_distinguish_stripes_in_a_few_steps():
    net = build_model(ModelSpec("compact", classes=2), seed=4)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    labels = torch.arange(16) % 2
    stripes = (torch.arange(32) // 2 % 2).float().expand(3, 32, 32)
    clean = torch.stack([stripes if label else stripes.mT for label in labels])
    generator = torch_generator("stripes")

    def noisy() -> torch.Tensor:
        return clean + torch.rand(clean.shape, generator=generator)

    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(net(noisy()), labels).backward()
        optimizer.step()
    net.train()
    with torch.no_grad():
        assert (net(noisy()).argmax(dim=1) == labels).all()


SHAPES = [
    (64, 3, 3, 3),
    (128, 64, 3, 3),
    (128, 128, 3, 3),
    (128, 128, 3, 3),
    (256, 128, 3, 3),
    (512, 256, 3, 3),
    (512, 512, 3, 3),
    (512, 512, 3, 3),
    (10, 512),
]


@pytest.fixture(scope="module")
def model() -> ResNet9:
    return build_model(ModelSpec("resnet9", classes=10), seed=1)


def test_it_has_nine_kernels_of_6568640_weights_and_nothing_else(model):
    shapes = [tuple(parameter.shape) for parameter in model.state_dict().values()]
    assert sorted(shapes) == sorted(SHAPES)
    assert sum(parameter.numel() for parameter in model.parameters()) == 6_568_640


def test_a_pass_is_the_published_sequence_of_convolutions_and_maxima(model):
    images = torch.rand(3, 3, 32, 32, generator=torch_generator("images"))
    kernels = [parameter.detach() for parameter in model.parameters() if parameter.dim() == 4]
    assert [tuple(kernel.shape) for kernel in kernels] == [
        *SHAPES[:2], *SHAPES[2:4], *SHAPES[4:6], *SHAPES[6:8]
    ]  # fmt: skip

    def convolve(values: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        return F.conv2d(values, kernel, padding="same").clamp_min(0)

    values = F.max_pool2d(convolve(convolve(images, kernels[0]), kernels[1]), 2)
    values = values + convolve(convolve(values, kernels[2]), kernels[3])
    values = F.max_pool2d(convolve(values, kernels[4]), 2)
    values = F.max_pool2d(convolve(values, kernels[5]), 2)
    values = values + convolve(convolve(values, kernels[6]), kernels[7])
    features = F.max_pool2d(values, 4)[:, :, 0, 0]
    with torch.no_grad():
        torch.testing.assert_close(model(images), features @ model.classifier.weight.T, rtol=1e-4, atol=1e-6)


def test_weights_are_normal_cut_at_two_deviations_with_their_deviation_after_the_cut(model):
    for parameter in model.state_dict().values():
        fan_in = parameter[0].numel()
        wanted = 1.2 / math.sqrt(fan_in)
        # The estimate of a deviation scatters by about 0.6 / sqrt(n).
        assert float(parameter.std()) == pytest.approx(wanted, rel=4 / math.sqrt(parameter.numel()))
        assert abs(float(parameter.mean())) < 5 * wanted / math.sqrt(parameter.numel())
        cut = 2 * wanted / 0.8796
        assert 0.97 * cut < float(parameter.abs().max()) <= 1.001 * cut


def test_grey_images_and_other_sizes_are_taken(model):
    grey = build_model(ModelSpec("resnet9", classes=4, channels=1), seed=1)
    assert grey(torch.zeros(2, 1, 28, 28)).shape == (2, 4)
    assert minimum_image_size("resnet9") == 16
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 10)


def test_dropout_before_the_head_brings_no_bias():
    model = build_model(ModelSpec("resnet9", classes=10, dropout=0.5), seed=1)
    assert sum(parameter.numel() for parameter in model.parameters()) == 6_568_640
    assert "classifier.bias" not in model.state_dict()
