"""Standardised intensities: mean 0 and deviation 1, and what cancels it."""

import pytest
import torch

from grandrounds.data.mammo_intensity import spread_range, standardise


@pytest.fixture
def batch():
    return torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.3 + 0.1


def test_each_image_has_mean_0_and_deviation_1(batch):
    flat = standardise(batch).flatten(1)
    torch.testing.assert_close(flat.mean(dim=1), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(flat.std(dim=1, correction=0), torch.ones(3, dtype=torch.float64))


def test_scale_and_offset_of_an_image_do_not_count(batch):
    torch.testing.assert_close(standardise(batch * 7 - 2), standardise(batch))


def test_spreading_undoes_the_standardisation(batch):
    torch.testing.assert_close(spread_range(standardise(batch)), spread_range(batch))
    assert spread_range(batch).flatten(1).aminmax(dim=1).min.tolist() == [-1, -1, -1]
    assert spread_range(batch).flatten(1).aminmax(dim=1).max.tolist() == [1, 1, 1]


@pytest.mark.parametrize("function", [standardise, spread_range])
@pytest.mark.parametrize("value", [0.0, 0.7, 1.0])
def test_a_constant_image_becomes_zeros(function, value):
    image = torch.full((1, 1, 50, 50), value)
    assert function(image).tolist() == torch.zeros(1, 1, 50, 50).tolist()


def test_hardly_any_contrast_is_not_blown_up():
    image = torch.zeros(1, 1, 1, 2, dtype=torch.float64)
    image[..., 1] = 1e-6
    assert standardise(image).abs().max().item() == pytest.approx(0.05)


@pytest.mark.parametrize("function", [standardise, spread_range])
@pytest.mark.parametrize("wrong", [torch.zeros(8, 8), torch.zeros(1, 1, 8, 8, dtype=torch.uint8)])
def test_refuses_what_is_no_batch_of_floats(function, wrong):
    with pytest.raises(ValueError, match="expected floating point"):
        function(wrong)
