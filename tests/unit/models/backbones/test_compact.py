"""The compact network is small, halves its maps four times, and learns."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from grandrounds.models.backbones.small_resnets import CompactNet
from grandrounds.models.registry import build_model
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


def test_it_learns_to_tell_stripes_apart_in_a_few_steps():
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
