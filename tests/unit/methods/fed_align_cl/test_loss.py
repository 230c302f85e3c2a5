"""Losses of discriminator and encoder: hand-computed numbers, exact at the ends, refused where they mean nothing."""

import math

import pytest
import torch

from grandrounds.methods.fed_align_cl.loss import (
    discriminator_loss,
    encoder_loss,
    moment_distance,
)


def logits(probability: float, samples: int = 3) -> torch.Tensor:
    return torch.full((samples,), math.log(probability / (1 - probability)), dtype=torch.float64)


@pytest.mark.parametrize(
    ("source", "target", "discriminator", "encoder"),
    [(0.5, 0.5, 1.386294, 1.386294), (0.9, 0.2, 0.328504, 1.714798), (0.9, 0.9, 2.407946, 0.210721)],
)
def test_hand_computed_values(source, target, discriminator, encoder):
    assert float(discriminator_loss(logits(source), logits(target, 5))) == pytest.approx(discriminator, abs=1e-6)
    assert float(encoder_loss(logits(source), logits(target, 5))) == pytest.approx(encoder, abs=1e-6)


def test_the_gradients_of_the_logits_are_those_of_the_sigmoid():
    source, target = (torch.tensor(values, dtype=torch.float64, requires_grad=True) for values in ([0.3, -1], [2.0]))
    discriminator_loss(source, target).backward()
    torch.testing.assert_close(source.grad, (source.detach().sigmoid() - 1) / 2)
    torch.testing.assert_close(target.grad, target.detach().sigmoid())
    source.grad = target.grad = None
    encoder_loss(source, target).backward()
    torch.testing.assert_close(source.grad, (source.detach().sigmoid() - 1) / 2)
    torch.testing.assert_close(target.grad, target.detach().sigmoid() - 1)


def test_agrees_with_torchs_cross_entropy():
    source, target = torch.tensor([0.7, -2.0, 4.0]), torch.tensor([1.0, -1.0])
    of_logits = torch.nn.functional.binary_cross_entropy_with_logits
    expected = of_logits(source, torch.ones(3)) + of_logits(target, torch.zeros(2))
    torch.testing.assert_close(discriminator_loss(source, target), expected)
    expected = of_logits(source, torch.ones(3)) + of_logits(target, torch.ones(2))
    torch.testing.assert_close(encoder_loss(source, target), expected)


def test_certain_mistakes_stay_finite_with_a_gradient():
    wrong = torch.tensor([-300.0], requires_grad=True)
    loss = encoder_loss(wrong, wrong)
    loss.backward()
    assert loss.item() == 600.0
    assert float(wrong.grad) == pytest.approx(-2.0)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_moments_by_hand():
    # Means 0 and 3, variances 1 and 4, scale 2.5: 9 / 5 + 9 / 25; the second site adds the same.
    own, other = column(-1, 1), column(1, 5)
    embeddings = own.clone().requires_grad_()
    distance = moment_distance(embeddings, own, [other])
    assert distance.item() == pytest.approx(1.8 + 0.36)
    distance.backward()
    # Per sample of two: (-3 / 2.5 + -3 e / 2.5^2) / 2.
    torch.testing.assert_close(embeddings.grad, column(-0.6 + 0.24, -0.6 - 0.24))


def test_the_gradient_of_moments_is_that_of_a_batchs_expectation():
    """With the bank as batch it is the derivative of the distance, at a fixed scale, as the whole bank moves."""
    generator = torch.Generator().manual_seed(1)
    own, other = (torch.randn(50, 3, generator=generator, dtype=torch.float64) + shift for shift in (0.0, 1.0))
    embeddings = own.clone().requires_grad_()
    moment_distance(embeddings, own, [other]).backward()
    moving = own.clone().requires_grad_()
    mean, variance = moving.mean(0), moving.var(0, correction=0)
    scale = torch.stack([own.var(0, correction=0), other.var(0, correction=0)]).mean(0)
    shift, spread = mean - other.mean(0), variance - other.var(0, correction=0)
    (shift.square() / (2 * scale) + spread.square() / (4 * scale.square())).mean().backward()
    torch.testing.assert_close(embeddings.grad, moving.grad)


@pytest.mark.parametrize("own", [torch.zeros(3, 2), torch.ones(1, 2)])
def test_banks_without_any_variance_have_a_finite_distance(own):
    embeddings = torch.ones(4, 2, requires_grad=True)
    assert moment_distance(embeddings, own, [own]) == 0
    distance = moment_distance(embeddings, own, [own + 1])
    distance.backward()
    assert torch.isfinite(distance)
    assert torch.isfinite(embeddings.grad).all()


def test_a_feature_that_is_dead_at_one_site_stays_finite():
    own, other = torch.zeros(4, 2), torch.tensor([[0.0, 1e-12], [0.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    embeddings = torch.ones(4, 2, requires_grad=True)
    distance = moment_distance(embeddings, own, [other])
    distance.backward()
    assert torch.isfinite(distance)
    assert torch.isfinite(embeddings.grad).all()
    assert (embeddings.grad[:, 0] == 0).all()
