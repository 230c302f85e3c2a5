"""Per-sample clipping against a loop over samples, noise against its definition, and what is refused."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from grandrounds.errors import ConfigurationError
from grandrounds.models.registry import build_model
from grandrounds.privacy.mechanisms.dp_sgd import (
    PrivateStep,
    poisson_batches,
    require_separate_samples,
)
from grandrounds.privacy.mechanisms.record_level import RecordLevelOptions
from grandrounds.protocol.problem import ModelSpec
from grandrounds.protocol.spending import Mechanism, Unit

TINY = 1e-12
WIDE = 7.0


def options(**changes):
    return RecordLevelOptions(**{"clip": 0.5, "noise_multiplier": TINY, "sampling_rate": 0.5, "steps": 3, **changes})


def batch(count=5, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, 16, 16, generator=generator), torch.randint(classes, (count,), generator=generator)


@pytest.fixture
def network():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 3))


def one_by_one(network, images, targets, clip):
    """The sum of clipped gradients, by autograd and one sample at a time."""
    total = [torch.zeros_like(p, dtype=torch.float64) for p in network.parameters()]
    for image, target in zip(images, targets, strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(network(image[None]), target[None]), list(network.parameters()))
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        for sum_, gradient in zip(total, gradients, strict=True):
            sum_ += gradient.double() * min(1.0, clip / norm)
    return total


@pytest.mark.parametrize("clip", [0.05, 0.5, 1e6])
@pytest.mark.parametrize("microbatch", [2, 32])
def test_without_noise_it_is_the_mean_of_clipped_gradients(network, clip, microbatch):
    images, targets = batch()
    step = PrivateStep(
        network, F.cross_entropy, 20, options(clip=clip, microbatch=microbatch, noise_multiplier=TINY / clip)
    )
    step.set_gradients(images, targets)
    for parameter, expected in zip(network.parameters(), one_by_one(network, images, targets, clip), strict=True):
        torch.testing.assert_close(parameter.grad.double(), expected / (0.5 * 20), rtol=1e-4, atol=1e-7)


def test_one_sample_more_moves_the_sum_by_the_clip_at_most(network):
    images, targets = batch(6)
    sums = []
    for count in (5, 6):
        PrivateStep(network, F.cross_entropy, 2, options(clip=0.05)).set_gradients(images[:count], targets[:count])
        sums.append(torch.cat([p.grad.double().flatten() for p in network.parameters()]))
    assert float((sums[1] - sums[0]).norm()) == pytest.approx(0.05, rel=1e-4)


def test_the_bound_leaves_room_for_the_rounding_of_a_sum_in_single_precision(network):
    """512 equal gradients add up to 512 bounds, each lower than the clip by 2 n^2 half units."""
    images, targets = batch(1)
    step = PrivateStep(network, F.cross_entropy, 2, options(clip=0.05, microbatch=512))
    step.set_gradients(images.expand(512, -1, -1, -1), targets.expand(512))
    total = torch.cat([p.grad.double().flatten() for p in network.parameters()]).norm()
    assert float(total) == pytest.approx(512 * 0.05 * (1 - 2 * 512**2 / 2**24), rel=1e-4)


def test_half_precision_of_the_network_does_not_round_a_gradient_beyond_the_clip(network):
    norms = []
    for seed in range(20):
        with torch.autocast("cpu", torch.bfloat16):
            PrivateStep(network, F.cross_entropy, 2, options(clip=0.05)).set_gradients(*batch(1, seed=seed))
        norms.append(float(torch.cat([p.grad.double().flatten() for p in network.parameters()]).norm()))
    assert max(norms) <= 0.05 * (1 + 1e-6)


def test_every_trained_entry_gets_noise_of_the_stated_size(network):
    images, _ = batch()
    chosen = options(clip=0.25, noise_multiplier=4.0)
    network[0].bias.requires_grad_(False)
    wide = nn.Sequential(network, nn.Linear(3, 30_000))
    empty = torch.zeros(0, dtype=torch.int64)
    PrivateStep(wide, F.cross_entropy, 10, chosen).set_gradients(images[:0], empty)
    noise = torch.cat([p.grad.flatten() for p in wide.parameters() if p.requires_grad]).double().numpy()
    assert abs(noise.std() / (4.0 * 0.25 / (0.5 * 10)) - 1) < WIDE / math.sqrt(2 * len(noise))
    assert abs(noise.mean()) < WIDE * 0.2 / math.sqrt(len(noise))
    assert network[0].bias.grad is None
    PrivateStep(wide, F.cross_entropy, 10, chosen).set_gradients(images[:0], empty)
    again = torch.cat([p.grad.flatten() for p in wide.parameters() if p.requires_grad]).double().numpy()
    assert abs(np.corrcoef(noise, again)[0, 1]) < WIDE / math.sqrt(len(noise))


def test_the_cost_is_that_of_the_rounds_steps():
    spending = options(clip=0.25, noise_multiplier=4.0, steps=7).spending()
    assert (spending.mechanism, spending.unit) == (Mechanism.DP_SGD, Unit.RECORD)
    step = spending.towards(Unit.RECORD)
    assert (step.noise_multiplier, step.sampling_rate, step.steps) == (4.0, 0.5, 7)
    assert spending.towards(Unit.SITE) is None


@pytest.mark.parametrize("backbone", ["compact", "resnet9", "mobilenetv2"])
def test_the_projects_models_with_group_norm_can_be_trained(backbone):
    network = build_model(ModelSpec(backbone=backbone, classes=3, norm="group", dropout=0.2), 0).train()
    images, targets = torch.rand(3, 3, 32, 32), torch.tensor([0, 1, 2])
    PrivateStep(network, F.cross_entropy, 6, options()).set_gradients(images, targets)
    assert all(bool(torch.isfinite(p.grad).all()) for p in network.parameters())


def test_batch_norm_is_refused_by_name():
    with pytest.raises(ConfigurationError, match=r"layer '1' is a BatchNorm2d.*problem\.norm=group"):
        PrivateStep(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), F.cross_entropy, 4, options())
    with pytest.raises(ConfigurationError, match="InstanceNorm2d"):
        require_separate_samples(nn.InstanceNorm2d(4, track_running_stats=True))


@pytest.mark.parametrize(
    "loss",
    [
        lambda logits, targets: F.cross_entropy(logits, targets) + (logits - logits.mean(dim=0)).square().mean(),
        lambda logits, targets: F.cross_entropy(logits, targets, reduction="sum"),
        lambda logits, targets: F.cross_entropy(logits, targets, weight=torch.tensor([1.0, 5.0, 20.0])),
    ],
    ids=["batch term", "sum", "class weights"],
)
def test_a_loss_that_is_no_mean_over_samples_is_refused(network, loss):
    with pytest.raises(ConfigurationError, match="not a mean over samples"):
        PrivateStep(network, loss, 10, options()).set_gradients(*batch())


def test_batches_are_poisson_samples_and_never_the_same_twice():
    rows = np.arange(100, 1100)
    drawn = list(poisson_batches(rows, options(sampling_rate=0.1, steps=200)))
    sizes = np.array([len(part) for part in drawn])
    assert abs(sizes.mean() - 100) < WIDE * math.sqrt(90 / 200)
    assert 60 < sizes.var() < 130  # a binomial's is 90; batches of a fixed size have none
    counts = np.bincount(np.concatenate(drawn), minlength=1100)[100:]
    assert abs(counts.mean() - 20) < 1
    assert not np.array_equal(drawn[0], drawn[1])
    assert list(map(len, poisson_batches(rows, options(sampling_rate=1.0)))) == [1000] * 3
