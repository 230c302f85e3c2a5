"""Rare classes have higher weights, and a batch of weight zero has no loss."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from grandrounds.methods.supervised.loss import median_class_weights
from grandrounds.protocol.tasks import SINGLE
from grandrounds.seeding import torch_generator


def test_class_weights_match_the_hand_computed_counts():
    weights = median_class_weights(torch.tensor([40, 10, 20, 0, 0]))
    assert weights.tolist() == [0.5, 2.0, 1.0, 100.0, 100.0]
    assert weights.dtype == torch.float32


def test_an_even_number_of_present_classes_takes_the_mean_of_the_middle_two():
    # median of 10, 20, 30, 60 is 25; the lower of the middle two would give 2, 1, ...
    assert median_class_weights(torch.tensor([10, 20, 30, 60])).tolist() == pytest.approx([2.5, 1.25, 25 / 30, 25 / 60])


@given(counts=st.lists(st.integers(0, 10_000), min_size=1, max_size=12).filter(any))
def test_class_weights_agree_with_numpys_median(counts):
    median = np.median([count for count in counts if count])
    expected = [median / count if count else 100.0 for count in counts]
    assert median_class_weights(torch.tensor(counts)).tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([[1, 2]], r"counts must have shape \(classes,\), got \(1, 2\)"),
        ([3, -1], "the count of class 1 must be 0 or more, got -1"),
        ([3.0, math.nan], "the count of class 1 must be 0 or more, got nan"),
        ([0, 0], "at least one labelled image"),
    ],
)
def test_invalid_counts_are_refused(counts, message):
    with pytest.raises(ValueError, match=message):
        median_class_weights(torch.tensor(counts))


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 2.0, 1.0])])
def test_uniform_logits_over_three_classes_cost_ln_3_whatever_the_weights(weights):
    loss = SINGLE.loss(torch.zeros(3, 3), torch.tensor([0, 1, 2]), weights)
    assert loss.item() == pytest.approx(math.log(3), rel=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_agrees_with_scikit_learns_weighted_log_loss(weighted):
    generator = torch_generator("supervised loss")
    logits = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (20,), generator=generator)
    weights = torch.tensor([0.5, 2.0, 1.0, 100.0])
    expected = log_loss(
        labels, logits.softmax(dim=1), labels=range(4), sample_weight=weights[labels].numpy() if weighted else None
    )
    assert SINGLE.loss(logits, labels, weights if weighted else None).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("labels", "weights"), [([0, 0], torch.tensor([0.0, 1.0])), ([], None), ([], torch.tensor([1.0, 1.0]))]
)
def test_a_batch_without_weight_gives_zero_loss_and_zero_gradient(labels, weights):
    logits = torch.full((len(labels), 2), 3.0, requires_grad=True)
    loss = SINGLE.loss(logits, torch.tensor(labels, dtype=torch.long), weights)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


@pytest.mark.parametrize(
    ("labels", "weights", "message"),
    [
        (torch.tensor([0]), None, r"got \(2, 3\) and \(1,\)"),
        (torch.full((2, 3), 1 / 3), None, r"got \(2, 3\) and \(2, 3\)"),
        (torch.tensor([0, 1]), torch.ones(2), r"class_weights must have shape \(3,\), got \(2,\)"),
    ],
)
def test_refuses_shapes_that_do_not_fit(labels, weights, message):
    with pytest.raises(ValueError, match=message):
        SINGLE.loss(torch.zeros(2, 3), labels, weights)
