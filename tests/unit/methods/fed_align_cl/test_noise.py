"""The paper's noise has the paper's size, and the epsilon that it would have is enormous."""

import math

import pytest
import torch

from grandrounds.methods.fed_align_cl.noise import absolute_noise, relative_noise
from grandrounds.methods.fed_align_cl.options import NoiseSourceOptions
from grandrounds.privacy.accounting import gaussian_epsilon
from grandrounds.seeding import torch_generator

COUNT = 1_000_000
seeded = NoiseSourceOptions("seeded").normals


def test_relative_noise_is_a_thousandth_of_the_tensors_deviation():
    value = 2.0 * torch.randn(COUNT, generator=torch_generator("value"), dtype=torch.float64)
    noised = relative_noise({"w": value}, 0.001, seeded("noise"))
    assert float((noised["w"] - value).std()) == pytest.approx(0.002, rel=0.01)


def test_absolute_noise_has_the_published_deviation():
    value = torch.zeros(COUNT, dtype=torch.float64)
    noises = [absolute_noise({"w": value}, 0.001, seeded("noise", site))["w"] for site in range(3)]
    assert float(noises[0].std()) == pytest.approx(0.031623, rel=0.01)
    assert float((sum(noises) / 3).std()) == pytest.approx(0.018257, rel=0.01)


def test_variances_integers_constants_and_single_values_stay():
    state = {
        "bn.running_var": torch.tensor([0.1, 0.2]),
        "steps": torch.tensor(5),
        "constant": torch.ones(4),
        "single": torch.tensor([7.0]),
    }
    for name, value in relative_noise(state, 0.5, seeded("n")).items():
        assert torch.equal(value, state[name]), name
    noised = absolute_noise(state, 0.5, seeded("n"))
    assert torch.equal(noised["bn.running_var"], state["bn.running_var"])
    assert torch.equal(noised["steps"], state["steps"])
    assert (noised["constant"] != 1).all()


def test_nothing_is_clipped():
    far = {"w": torch.tensor([1e6, -1e6])}
    torch.testing.assert_close(absolute_noise(far, 0.001, seeded("n"))["w"], far["w"])


@pytest.mark.parametrize(
    ("variance", "releases", "epsilon"), [(0.001, 1, 634), (0.001, 150, 76_651), (0.01, 150, 8_021), (0.1, 150, 914)]
)
def test_the_epsilon_under_its_own_assumption_is_what_was_measured(variance, releases, epsilon):
    # Clipped to one, the sensitivity that the paper assumes.
    assert gaussian_epsilon(math.sqrt(variance), 1e-5, releases) == pytest.approx(epsilon, rel=1e-3)
