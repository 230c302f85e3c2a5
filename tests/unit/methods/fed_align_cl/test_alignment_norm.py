"""How batch norm normalises while aligning: by the batch, or as in the tests of the deployed model."""

import copy

import pytest
import torch
from align_hospitals import FEATURES, SITES, batch, make_optimizers, moved, network, participant, sgd, state

from grandrounds.errors import ConfigurationError
from grandrounds.methods.fed_align_cl.discriminator import make_discriminator
from grandrounds.methods.fed_align_cl.iteration import AlignmentTrainer, Neighbour, train_iteration
from grandrounds.methods.fed_align_cl.options import EmbeddingNoiseOptions, EncoderAlignmentOptions
from grandrounds.models.split import split_network
from grandrounds.seeding import numpy_generator

STATISTICS = ("1.running_mean", "1.running_var", "1.num_batches_tracked")


def hospital(norm):
    """With running statistics that no single batch has."""
    model = network(3)
    model[1].running_mean.fill_(0.3)
    model[1].running_var.fill_(2.0)
    discriminator = make_discriminator(FEATURES, "own").double()
    optimizers = make_optimizers(model, discriminator, sgd)
    noise = EmbeddingNoiseOptions("absolute", 1e-20)
    return AlignmentTrainer(model, discriminator, optimizers, noise, numpy_generator("noise").bytes, None, norm)


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


@pytest.mark.parametrize(("norm", "as_tested"), [("batch", False), ("shared", True), ("frozen", True)])
def test_embeddings_are_those_of_the_test_unless_they_are_normalised_by_the_batch(norm, as_tested):
    trainer, (images, _) = hospital(norm), batch(SITES[0])
    statistics = state(trainer.network)
    expected = in_evaluation(trainer, images)
    assert torch.allclose(trainer.embed(images).clean, expected, rtol=0, atol=1e-12) is as_tested
    assert not moved(statistics, trainer.network, STATISTICS)
    assert trainer.network[1].training


@pytest.mark.parametrize(("norm", "counted"), [("batch", 1), ("shared", 1), ("frozen", 0)])
@pytest.mark.parametrize("update", ["summed", "joint", "pair_sequential"])
def test_classification_updates_the_running_statistics_unless_they_are_frozen(norm, counted, update):
    trainer = hospital(norm)
    before, discriminator = state(trainer.network), state(trainer.discriminator)
    losses = iterate(trainer, update)
    if not (norm == "shared" and update == "joint"):  # which options refuse
        assert int(trainer.network[1].num_batches_tracked) == counted
        assert moved(before, trainer.network, STATISTICS) is bool(counted)
    assert moved(before, trainer.network, ("0.", "3."))
    assert moved(discriminator, trainer.discriminator)
    assert all(bool(torch.isfinite(loss)) for loss in losses.values())


def test_shared_statistics_are_those_that_were_deployed_although_classification_changes_the_sites_own():
    trainer, (images, _) = hospital("shared"), batch(SITES[0])
    deployed = {name: trainer.network.state_dict()[name].clone() for name in STATISTICS}
    iterate(trainer)
    assert moved(deployed, trainer.network, STATISTICS[:2])
    twin = copy.deepcopy(trainer)
    twin.network.load_state_dict({**trainer.network.state_dict(), **deployed})
    torch.testing.assert_close(trainer.embed(images).clean, in_evaluation(twin, images), rtol=0, atol=1e-12)


def test_without_others_a_site_classifies_with_batch_norm_as_ever():
    frozen, plain = hospital("frozen"), hospital("batch")
    for trainer in (frozen, plain):
        train_iteration(trainer, SITES[0], *batch(SITES[0]), {}, EncoderAlignmentOptions(), numpy_generator(1))
    assert not moved(state(plain.network), frozen.network)
    assert int(frozen.network[1].num_batches_tracked) == 1


def test_a_joint_step_has_one_normalisation():
    with pytest.raises(ConfigurationError, match=r"update=joint has one pass .* alignment_norm"):
        EncoderAlignmentOptions(update="joint", alignment_norm="shared")
