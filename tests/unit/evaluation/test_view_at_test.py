"""Logits of an image and of its half turn are averaged wherever a model is scored, predicted with or exported."""

import numpy as np
import pytest
import torch
from torch import nn

from grandrounds.evaluation.prediction import predict, tensors_of
from grandrounds.models.depths import RiskNetwork
from grandrounds.models.inference.portable import write_portable
from grandrounds.protocol.problem import Problem


class FirstPixel(nn.Module):
    """The first pixel is the logit of class 1, the last one that of class 0."""

    def forward(self, images):
        flat = images.flatten(1)
        return torch.stack([flat[:, -1], flat[:, 0]], dim=1)


IMAGES = np.array([[[0, 0], [0, 255]], [[255, 0], [0, 51]]], np.uint8)[..., None]


def test_logits_are_averaged_by_hand():
    alone = predict(FirstPixel(), tensors_of(IMAGES), np.arange(2)).risks
    both = predict(FirstPixel(), tensors_of(IMAGES), np.arange(2), test_view="half_turn").risks
    np.testing.assert_allclose(alone[0], torch.softmax(torch.tensor([1.0, 0.0]), 0), atol=1e-6)
    np.testing.assert_allclose(
        both, np.full((2, 2), 0.5), atol=1e-6
    )  # each logit is that of the other class's pixel, too


def test_a_module_averages_as_predictions_do():
    inputs = tensors_of(IMAGES)(np.arange(2))
    averaged = torch.softmax(RiskNetwork(FirstPixel(), True)(inputs), 1)
    np.testing.assert_allclose(
        averaged, predict(FirstPixel(), tensors_of(IMAGES), np.arange(2), test_view="half_turn").risks, atol=1e-6
    )


@pytest.mark.parametrize("view", [None, "half_turn"])
def test_an_exported_network_averages_too(tmp_path, view):
    problem = Problem("skin", ("a", "b"), image_size=2, channels=1, test_view=view)
    network = RiskNetwork(FirstPixel(), bool(view))
    loaded = torch.jit.load(write_portable(network, problem, "torchscript", tmp_path))
    inputs = tensors_of(IMAGES)(np.arange(2))
    wanted = predict(FirstPixel(), tensors_of(IMAGES), np.arange(2), test_view=view).risks
    np.testing.assert_allclose(torch.softmax(loaded(inputs), 1), wanted, atol=1e-6)
