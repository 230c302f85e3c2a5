"""The robust losses have the values, bounds and gradients of the equations, computed by hand."""

import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from grandrounds.methods.mutual.training import (
    LABEL_FLOOR,
    refined_cross_entropy,
    reverse_cross_entropy,
    symmetric_cross_entropy,
)
from grandrounds.seeding import torch_generator

LOGITS = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64)
FIRST, LAST = torch.tensor([0]), torch.tensor([2])
# ln(e^2 + e + 1) = 2.40760596, so the probabilities are exp(2, 1, 0 minus that).
PROBABILITIES = torch.tensor([[0.66524096, 0.24472847, 0.09003057]], dtype=torch.float64)
FLOOR_OF_A_MINUS_4 = math.exp(-4)


@pytest.mark.parametrize(
    ("labels", "floor", "expected"),
    [
        (FIRST, 1e-4, 3.08324474),  # 9.21034037 * 0.33475904
        (FIRST, FLOOR_OF_A_MINUS_4, 1.33903618),  # 4 * 0.33475904
        (LAST, 1e-4, 8.38112815),  # 9.21034037 * 0.90996943
    ],
)
def test_reverse_cross_entropy_matches_hand_computed_values(labels, floor, expected):
    assert float(reverse_cross_entropy(LOGITS, labels, floor)) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("labels", "floor", "expected"),
    [(FIRST, 1e-4, 3.12400534), (FIRST, FLOOR_OF_A_MINUS_4, 1.37979677), (LAST, 1e-4, 8.62188874)],
)
def test_symmetric_cross_entropy_matches_hand_computed_values(labels, floor, expected):
    assert float(symmetric_cross_entropy(LOGITS, labels, floor=floor)) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(("labels", "expected"), [(FIRST, 0.40760596), (LAST, 2.40760596)])
def test_without_the_reverse_term_it_is_cross_entropy(labels, expected):
    loss = symmetric_cross_entropy(LOGITS, labels, ce_weight=1.0, rce_weight=0.0)
    assert float(loss) == pytest.approx(expected, abs=1e-7)


def test_a_batch_is_averaged_not_summed():
    logits, labels = LOGITS.repeat(2, 1), torch.tensor([0, 2])
    assert float(symmetric_cross_entropy(logits, labels)) == pytest.approx(5.87294705, abs=1e-7)


def test_it_is_within_a_millionth_of_the_values_of_the_published_code():
    batches = [(LOGITS, FIRST), (LOGITS, LAST), (LOGITS.repeat(2, 1), torch.tensor([0, 2]))]
    ours = [float(symmetric_cross_entropy(logits.float(), labels)) for logits, labels in batches]
    assert ours == pytest.approx([3.1240054, 8.6218889, 5.8729471], abs=1e-6)


def test_uniform_predictions_of_thirteen_classes_cost_what_they_should():
    loss = symmetric_cross_entropy(torch.zeros(1, 13, dtype=torch.float64), FIRST)
    assert float(loss) == pytest.approx(8.75834759, abs=1e-7)


def test_labels_above_nine_are_labels_as_others():
    loss = symmetric_cross_entropy(torch.zeros(1, 13, dtype=torch.float64), torch.tensor([12]))
    assert float(loss) == pytest.approx(8.75834759, abs=1e-7)


def test_the_gradient_is_that_of_cross_entropy_weighted_by_the_probability_of_the_label():
    logits = LOGITS.clone().requires_grad_()
    symmetric_cross_entropy(logits, FIRST).backward()
    expected = torch.tensor([[-2.0845766, 1.5239476, 0.5606290]], dtype=torch.float64)
    torch.testing.assert_close(logits.grad, expected, atol=1e-6, rtol=0)
    weighted = (0.1 + 9.210340371976182 * PROBABILITIES[0, 0]) * (PROBABILITIES - torch.tensor([[1.0, 0.0, 0.0]]))
    torch.testing.assert_close(logits.grad, weighted, atol=1e-6, rtol=0)


def test_only_the_product_of_the_logarithm_and_its_weight_matters():
    labels = torch.tensor([0, 1, 2, 1])
    logits = torch.randn(4, 3, generator=torch_generator("logits"), dtype=torch.float64)
    with_a_of_4 = symmetric_cross_entropy(logits, labels, floor=FLOOR_OF_A_MINUS_4)
    with_weight = symmetric_cross_entropy(logits, labels, rce_weight=4 / -math.log(LABEL_FLOOR))
    assert float(with_a_of_4) == pytest.approx(float(with_weight), rel=1e-12)
    assert 4 / -math.log(LABEL_FLOOR) == pytest.approx(0.4343, abs=1e-4)


def test_a_wrong_label_costs_at_most_the_logarithm_of_the_floor():
    surely_wrong = torch.tensor([[1000.0, 0.0]], dtype=torch.float64)
    assert float(reverse_cross_entropy(surely_wrong, torch.tensor([1]))) == pytest.approx(9.21034037)
    assert float(reverse_cross_entropy(surely_wrong, torch.tensor([0]))) == 0


def oracle_of_refined(logits, labels, trust, temperature, ce_weight, rce_weight):
    own, surprise = softmax(logits / temperature, axis=1), log_softmax(logits / temperature, axis=1)
    given = torch.eye(logits.shape[1], dtype=torch.float64)[labels].clamp(min=1e-4).numpy()
    refined = (1 - trust) * given + trust * own
    return float(np.mean(-ce_weight * (refined * surprise).sum(1) - rce_weight * (own * np.log(refined)).sum(1)))


@pytest.mark.parametrize(("trust", "temperature"), [(0.0, 4.0), (0.05, 4.0), (1 / 11, 1.0)])
def test_refined_labels_agree_with_numpy(trust, temperature):
    logits = 3 * torch.randn(6, 4, generator=torch_generator("refined"), dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 3, 0])
    expected = oracle_of_refined(logits.numpy(), labels, trust, temperature, 0.4, 0.9)
    loss = refined_cross_entropy(logits, labels, trust, temperature)
    assert float(loss) == pytest.approx(expected, rel=1e-12)


def test_refined_labels_match_a_hand_computed_value():
    # p = (.75, .25); s = (.9 + .075, .00009 + .025) = (.975, .02509)
    logits = torch.tensor([[math.log(3), 0.0]], dtype=torch.float64)
    usual = -(0.975 * math.log(0.75) + 0.02509 * math.log(0.25))
    reverse = -(0.75 * math.log(0.975) + 0.25 * math.log(0.02509))
    loss = refined_cross_entropy(logits, FIRST, trust=0.1, temperature=1.0)
    assert float(loss) == pytest.approx(0.4 * usual + 0.9 * reverse, rel=1e-12)


def test_refined_labels_have_no_gradient():
    logits = LOGITS.clone().requires_grad_()
    refined_cross_entropy(logits, FIRST, trust=1.0, temperature=1.0, ce_weight=1.0, rce_weight=1.0).backward()
    # d/dz of -(s ln p) is p - s = 0 where s = p, and of -(p ln s) it is -p (ln s - sum p ln s).
    inner = PROBABILITIES.log() - (PROBABILITIES * PROBABILITIES.log()).sum()
    torch.testing.assert_close(logits.grad, -PROBABILITIES * inner, atol=1e-7, rtol=0)


def test_trust_in_underflown_predictions_stays_finite():
    logits = torch.tensor([[2000.0, 0.0]], requires_grad=True)
    loss = refined_cross_entropy(logits, FIRST, trust=1.0)
    loss.backward()
    assert math.isfinite(float(loss))
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize(
    "loss",
    [reverse_cross_entropy, symmetric_cross_entropy, lambda z, y: refined_cross_entropy(z, y, trust=0.1)],
)
def test_an_empty_batch_costs_nothing_and_is_differentiable(loss):
    logits = torch.zeros(0, 3, requires_grad=True)
    value = loss(logits, torch.zeros(0, dtype=torch.int64))
    value.backward()
    assert float(value) == 0
