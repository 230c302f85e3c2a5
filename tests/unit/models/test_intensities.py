"""Standardised intensities: mean 0 and deviation 1, and what cancels it."""

import copy

import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.models.intensities import as_efficientnet_lite, as_imagenet, spread_range, standardise
from grandrounds.models.registry import build_model
from grandrounds.models.split import split_network
from grandrounds.protocol.problem import ModelSpec


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


@pytest.mark.parametrize(
    ("intensities", "change"),
    [
        ("standardised", standardise),
        ("spread", spread_range),
        ("imagenet", as_imagenet),
        ("efficientnet_lite", as_efficientnet_lite),
    ],
)
def test_a_network_sees_changed_intensities_whole_and_split(batch, intensities, change):
    images = batch.float().repeat(1, 3, 8, 8)
    plain, network = (
        build_model(ModelSpec("compact", 2, intensities=kind), 1).eval() for kind in ("scaled", intensities)
    )
    expected = plain(change(images))
    assert not torch.allclose(expected, plain(images))
    torch.testing.assert_close(network(images), expected)
    encoder, head = split_network(network)
    torch.testing.assert_close(head(encoder(images)), expected)
    torch.testing.assert_close(copy.deepcopy(network)(images), expected)
    assert network.state_dict().keys() == plain.state_dict().keys()


def test_imagenets_mean_and_deviation_are_taken_off_each_channel():
    # (0.5 - 0.485) / 0.229, (0.5 - 0.456) / 0.224 and (0.5 - 0.406) / 0.225.
    found = as_imagenet(torch.full((2, 3, 1, 1), 0.5, dtype=torch.float64))
    expected = torch.tensor([0.0655022, 0.1964286, 0.4177778], dtype=torch.float64)
    torch.testing.assert_close(found.flatten(1), expected.repeat(2, 1), atol=1e-7, rtol=0)
    with pytest.raises(ValueError, match="needs images of three channels, got 1"):
        as_imagenet(torch.zeros(1, 1, 2, 2))


def test_unknown_intensities_are_refused():
    expected = "intensities must be auto, scaled, standardised, spread, imagenet or efficientnet_lite, got 'raw'"
    with pytest.raises(ConfigurationError, match=expected):
        ModelSpec("compact", 2, intensities="raw")
