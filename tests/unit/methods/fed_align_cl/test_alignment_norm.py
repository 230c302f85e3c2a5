"""Batch norm normalises by the batch while aligning; classification alone counts a batch."""

import copy

import pytest
import torch
from align_hospitals import FEATURES, SITES, batch, make_optimizers, moved, network, participant, sgd, state

from grandrounds.methods.fed_align_cl.iteration import AlignmentTrainer, Neighbour, train_iteration
from grandrounds.methods.fed_align_cl.loss import make_discriminator
from grandrounds.methods.fed_align_cl.options import EmbeddingNoiseOptions, EncoderAlignmentOptions
from grandrounds.models.split import split_network
from grandrounds.seeding import numpy_generator

STATISTICS = ("1.running_mean", "1.running_var", "1.num_batches_tracked")


def hospital():
    """With running statistics that no single batch has."""
    model = network(3)
    model[1].running_mean.fill_(0.3)
    model[1].running_var.fill_(2.0)
    discriminator = make_discriminator(FEATURES, "own").double()
    optimizers = make_optimizers(model, discriminator, sgd)
    noise = EmbeddingNoiseOptions("absolute", 1e-20)
    return AlignmentTrainer(model, discriminator, optimizers, noise, numpy_generator("noise").bytes)


def neighbours():
    return {
        site: Neighbour(
            participant(site).embed(batch(site)[0]).noisy.detach(), make_discriminator(FEATURES, site).double(), 2
        )
        for site in SITES[1:]
    }


def iterate(trainer, update="summed"):
    options = EncoderAlignmentOptions(update=update)
    return train_iteration(trainer, SITES[0], *batch(SITES[0]), neighbours(), options, numpy_generator(1))


def in_evaluation(trainer, images):
    tested = copy.deepcopy(trainer.network).eval()
    with torch.no_grad():
        return split_network(tested).encoder(images)


def test_an_embedding_is_normalised_by_its_batch_and_changes_no_statistics():
    trainer, (images, _) = hospital(), batch(SITES[0])
    statistics = state(trainer.network)
    assert not torch.allclose(trainer.embed(images).clean, in_evaluation(trainer, images), rtol=0, atol=1e-12)
    assert not moved(statistics, trainer.network, STATISTICS)
    assert trainer.network[1].training


@pytest.mark.parametrize("update", ["summed", "joint", "pair_sequential"])
def test_classification_alone_updates_the_running_statistics(update):
    trainer = hospital()
    before, discriminator = state(trainer.network), state(trainer.discriminator)
    losses = iterate(trainer, update)
    assert int(trainer.network[1].num_batches_tracked) == 1
    assert moved(before, trainer.network, (*STATISTICS, "0.", "3."))
    assert moved(discriminator, trainer.discriminator)
    assert all(bool(torch.isfinite(loss)) for loss in losses.values())
