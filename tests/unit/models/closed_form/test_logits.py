"""The temperature of scores of a head in closed form."""

import math

import numpy as np
import pytest
import torch

from grandrounds.models.closed_form.solve import TEMPERATURES, best_temperature, risk_offset, summed_losses, uncorrected
from grandrounds.protocol.task import MASKED
from grandrounds.protocol.tasks import FINDINGS, SINGLE


def test_an_image_of_a_class_that_was_not_trained_does_not_choose_the_temperature():
    """Ten sure and right images, and one of a class without training images, whose logit is 0 at any temperature."""
    scores = torch.cat([torch.tensor([[1.0, 0.0, 0.0]]).repeat(10, 1), torch.tensor([[0.5, 0.5, 0.0]])]).double()
    labels = torch.tensor([0] * 10 + [2])
    shares = torch.tensor([0.5, 0.5, 0.0])
    centre, offsets = uncorrected(SINGLE, shares, torch.ones(3))
    assert offsets.tolist() == [[0.0] * 3] * 2
    losses = torch.stack([SINGLE.loss(one * (scores - centre) + offsets[1], labels) for one in TEMPERATURES])
    assert 1 < best_temperature(losses) < 64


def test_risks_are_at_the_shares_before_images_were_weighted_by_hand():
    """Images of a class of a tenth weigh three times as much: its odds in the sums are 3 to 9, and 1 to 9 of images."""
    weights, sums = torch.tensor([3.0, 1.0]), torch.tensor([3.0, 9.0]).double()
    risks = risk_offset(SINGLE, sums / sums.sum(), weights)
    assert float(risks[0] - risks[1]) == pytest.approx(-math.log(3))
    decided = SINGLE.centre_and_offset(sums / sums.sum(), 1.0)[1]
    assert float(decided[0] - decided[1]) == pytest.approx(math.log(3)), "decisions are of equal frequencies"
    (finding,) = risk_offset(FINDINGS, torch.tensor([0.2]), torch.ones(1)).tolist()
    assert finding == pytest.approx(math.log(0.2 / 0.8))
    assert risk_offset(SINGLE, torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]))[1] == MASKED


def test_losses_of_heads_are_added_up_over_answers_by_hand():
    """Two images of class 0 and 1, one unknown. Head 1 has scores ln 3 apart and right, head 2 the same and wrong."""
    apart, none = torch.tensor(3.0).double().log(), torch.zeros(2).double()
    right = torch.stack([torch.stack([apart, none[0]]), torch.stack([none[0], apart]), none])
    (table,) = summed_losses(SINGLE, torch.stack([right, -right]), none, none[None], np.array([0, 1, -1]), 5.0)
    assert table.shape == (2, len(TEMPERATURES))
    # exp(-loss) of one image at temperature 1: 3/4 and 1/4; at 2 (the fifth of the grid): 9/10 and 1/10.
    assert table[:, 0].tolist() == pytest.approx([2 * math.log(4 / 3), 2 * math.log(4)])
    assert table[:, 4].tolist() == pytest.approx([2 * math.log(10 / 9), 2 * math.log(10)])
    assert table[1, -1].item() == pytest.approx(2 * 5.0), "each answer's loss has a bound"


def test_each_finding_of_an_image_is_an_answer():
    scores, none = torch.zeros(1, 2, 3).double(), torch.zeros(3).double()
    (table,) = summed_losses(FINDINGS, scores, none, none[None], np.array([[1, 0, -1], [0, -1, -1]]), 5.0)
    assert table[0].tolist() == pytest.approx([3 * math.log(2)] * len(TEMPERATURES))
