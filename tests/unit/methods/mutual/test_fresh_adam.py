"""A new Adam for each batch is a sign step, and an exchange after each batch is RHFL's loop over all clients at once."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from grandrounds.methods.mutual.schedule import exchange_chunks, public_order, whole_batches
from grandrounds.methods.mutual.soft_labels import SoftLabels, add_up
from grandrounds.methods.mutual.training import alignment_loss, fresh_adam_step
from grandrounds.seeding import torch_generator

SITES = ("site-1", "site-2", "site-3")
IMAGES, FEATURES, CLASSES, BATCH = 40, 5, 4, 8


def networks(dtype):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        widths = dict(zip(SITES, (6, 9, 12), strict=True))
        return {
            site: nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, CLASSES)).to(dtype)
            for site, width in widths.items()
        }


def public_images(dtype):
    return torch.randn(IMAGES, FEATURES, generator=torch_generator("public"), dtype=torch.float64).to(dtype)


def in_exchanges(models, images, chunk):
    """What a federation does: rows are exchanged for a chunk, and every site learns from it alone."""
    for part in exchange_chunks(public_order(IMAGES, 1, 1), BATCH, chunk):
        with torch.no_grad():
            rows = {site: model(images).softmax(dim=1) for site, model in models.items()}
        total = add_up({site: SoftLabels.of_site(site, 1, own) for site, own in rows.items()})
        for site, model in models.items():
            target = total.mean_of_others(site, {1: rows[site]})
            for batch in whole_batches(part, BATCH):
                model.zero_grad()
                alignment_loss(model(images[batch]), target[batch]).backward()
                fresh_adam_step(model.parameters(), 1e-3)


def all_at_once(models, images):
    """RHFL according to its text: in one process, each batch by each client, a divergence from each other client."""
    for batch in whole_batches(public_order(IMAGES, 1, 1), BATCH):
        logits = {site: model(images[batch]) for site, model in models.items()}
        rows = {site: own.softmax(dim=1).detach() for site, own in logits.items()}
        for site, model in models.items():
            optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
            optimiser.zero_grad()
            own = logits[site].log_softmax(dim=1)
            each = [F.kl_div(own, rows[other], reduction="batchmean") for other in SITES if other != site]
            torch.stack(each).mean().backward()
            optimiser.step()


def distance(models, others):
    pairs = zip(models.values(), others.values(), strict=True)
    return max(
        float((a - b).detach().abs().max())
        for m, o in pairs
        for a, b in zip(m.parameters(), o.parameters(), strict=True)
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_an_exchange_after_each_batch_is_the_loop_over_all_clients(dtype, tolerance):
    images, start = public_images(dtype), networks(dtype)
    federated, together = copy.deepcopy(start), copy.deepcopy(start)
    in_exchanges(federated, images, chunk=BATCH)
    all_at_once(together, images)
    assert distance(federated, together) < tolerance
    assert distance(federated, start) > 1e-3


def test_one_exchange_for_all_batches_is_something_else():
    images, start = public_images(torch.float64), networks(torch.float64)
    federated, together = copy.deepcopy(start), copy.deepcopy(start)
    in_exchanges(federated, images, chunk=None)
    all_at_once(together, images)
    assert distance(federated, together) > 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-15), (torch.float32, 2e-7)])
def test_a_fresh_step_is_the_first_of_adam(dtype, tolerance):
    gradient = torch.randn(100, generator=torch_generator("gradient"), dtype=dtype) * 10.0 ** torch.arange(
        -10, 0
    ).repeat(10)
    gradient[:3] = 0
    start = torch.randn(100, generator=torch_generator("start"), dtype=dtype)
    ours, theirs = (nn.Parameter(start.clone()) for _ in range(2))
    ours.grad, theirs.grad = gradient.to(dtype).clone(), gradient.to(dtype).clone()
    fresh_adam_step([ours], 1e-3)
    torch.optim.Adam([theirs], lr=1e-3).step()
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)
    assert torch.equal(ours[:3], start[:3])
    expected = -1e-3 * gradient.double() / (gradient.double().abs() + 1e-8)
    torch.testing.assert_close((ours - start).double(), expected, atol=5e-7, rtol=0)


def test_a_fresh_step_does_not_see_the_scale_of_the_loss():
    steps = []
    for scale in (1.0, 100.0):
        parameter = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        parameter.grad = scale * torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
        fresh_adam_step([parameter], 1e-3)
        steps.append(parameter.detach())
    torch.testing.assert_close(steps[0], steps[1], atol=1e-10, rtol=0)


def test_parameters_without_gradient_stay():
    frozen = nn.Parameter(torch.ones(2))
    fresh_adam_step([frozen], 1e-3)
    assert torch.equal(frozen, torch.ones(2))
