"""The temperature of scores of a head in closed form."""

import torch

from grandrounds.models.closed_form.logits import TEMPERATURES, best_temperature, uncorrected
from grandrounds.protocol.tasks import SINGLE


def test_an_image_of_a_class_that_was_not_trained_does_not_choose_the_temperature():
    """Ten sure and right images, and one of a class without training images, whose logit is 0 at any temperature."""
    scores = torch.cat([torch.tensor([[1.0, 0.0, 0.0]]).repeat(10, 1), torch.tensor([[0.5, 0.5, 0.0]])]).double()
    labels = torch.tensor([0] * 10 + [2])
    shares = torch.tensor([0.5, 0.5, 0.0])
    centre, offset = uncorrected(SINGLE, shares)
    assert offset.tolist() == [0.0, 0.0, 0.0]
    losses = torch.stack([SINGLE.loss(one * (scores - centre) + offset, labels) for one in TEMPERATURES])
    assert 1 < best_temperature(losses) < 64
