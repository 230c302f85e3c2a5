"""Evidence is where the predicted class finds it, for every backbone."""

import pytest
import torch
from torch import nn

from grandrounds.evaluation.grad_cam import last_maps, prediction_maps
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec


def bright_or_dark():
    """Class 0 for bright images, class 1 for dark ones: the maps are brightness and darkness themselves."""
    maps = nn.Conv2d(1, 2, 1)
    head = nn.Linear(2, 2)
    with torch.no_grad():
        maps.weight.copy_(torch.tensor([1.0, -1.0])[:, None, None, None])
        maps.bias.copy_(torch.tensor([0.0, 1.0]))
        head.weight.copy_(torch.eye(2))
        head.bias.zero_()
    return nn.Sequential(maps, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).eval()


def test_maps_are_those_before_pooling():
    network = bright_or_dark()
    assert last_maps(network, torch.zeros(1, 1, 4, 4)) is network[0]


def test_each_image_is_explained_by_its_own_prediction():
    images = torch.zeros(2, 1, 4, 4)
    images[0] = 0.8
    images[0, 0, :, 0] = 1.0  # bright, most so at the left
    images[1, 0, :, 3] = 0.5  # dark, least so at the right
    network = bright_or_dark()
    assert network(images).argmax(dim=1).tolist() == [0, 1]
    bright, dark = prediction_maps(network, images)
    assert bright[:, 0] == pytest.approx(1)
    assert (bright[:, 1:] < 1).all()
    assert dark[:, :3] == pytest.approx(1)
    assert (dark[:, 3] < 1).all()


@pytest.mark.parametrize("backbone", ["compact", "resnet10"])
def test_backbones_have_maps_of_the_images_size(backbone):
    network = build_model(ModelSpec(backbone=backbone, classes=3), seed=1).eval()
    maps = prediction_maps(network, torch.rand(2, 3, 32, 32))
    assert maps.shape == (2, 32, 32)
    assert maps.min() >= 0
    assert maps.max() <= 1


def test_a_network_without_maps_is_refused():
    with pytest.raises(ValueError, match="has no part that gives maps"):
        prediction_maps(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval(), torch.zeros(1, 1, 2, 2))
