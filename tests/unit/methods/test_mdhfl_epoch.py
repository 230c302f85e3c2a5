"""What a site does in an epoch depends on which epoch it is, and not on what was done with its network before."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from grandrounds.methods.mutual.contributions import RowSum
from grandrounds.methods.mutual.local_training import Epoch, learn_own_labels
from grandrounds.methods.mutual.loss import refined_cross_entropy
from grandrounds.methods.mutual.options import AlignmentOptions, ExchangeOptions, LocalOptions
from grandrounds.methods.mutual.participant import Choices, Participant, PublicImages
from grandrounds.methods.mutual.training import AlignmentStep, Private, Target, align, train_local
from grandrounds.methods.mutual.work import PlainWork
from grandrounds.seeding import numpy_generator

IMAGES = numpy_generator("images").integers(0, 256, (8, 4, 4, 1), dtype=np.uint8)
PIXELS = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).to(torch.float32).div(255).double()
OWN = Private(IMAGES, np.arange(8) % 3, np.arange(8))
UNIFORM = torch.full((8, 3), 1 / 3, dtype=torch.float64)
WORK = PlainWork()


@pytest.fixture
def network():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 3)).double()


@pytest.mark.parametrize("half", ["public", "own"])
def test_both_halves_normalise_by_the_batch_in_whatever_mode_the_network_comes(half, network):
    """A round that ends with a test leaves the network in evaluation mode."""
    tested = copy.deepcopy(network).eval()
    for model in (network, tested):
        if half == "public":
            options = AlignmentOptions()
            align(model, AlignmentStep(model, options), IMAGES, Target(UNIFORM), [np.arange(8)], options, 1, WORK)
        else:
            train_local(model, OWN, [np.arange(8)], LocalOptions(local_view="none"), 1, WORK)
    assert torch.equal(tested[2].weight, network[2].weight)
    assert torch.equal(tested[1].running_mean, network[1].running_mean)
    assert float(tested[1].running_mean.abs().min()) > 0


@pytest.mark.parametrize(("number", "trust"), [(0, 0.0), (1, 0.0), (3, 2 / 42)])
def test_rhfl_plus_trusts_no_prediction_in_its_first_epoch_and_some_in_its_third_of_four(number, trust, network):
    with torch.no_grad():
        logits = copy.deepcopy(network).train()(PIXELS)
    expected = float(refined_cross_entropy(logits, torch.from_numpy(OWN.labels), trust))
    options = LocalOptions(loss="refined", batch_size=8, local_view="none")
    found = learn_own_labels(network, OWN, options, 1.0, Epoch(1, "site-1", number, 4), WORK)
    assert found == pytest.approx(expected, rel=1e-9)


def test_public_images_are_turned_anew_in_each_exchange_and_alike_at_all_sites(network):
    choices = Choices(
        1, 2, ExchangeOptions(public_batch=4), AlignmentOptions(alignment_view="turns"), LocalOptions(batch_size=4)
    )
    others = RowSum(UNIFORM, {"site-9": 1}, {"site-9": 1.0})

    def loss(site, number):
        member = Participant(site, copy.deepcopy(network), PublicImages(IMAGES, "digest"), OWN, choices, WORK)
        return member.align(others, np.arange(8), number, 1)

    assert loss("site-1", 1) == loss("site-2", 1) != loss("site-1", 2)
