"""Single steps against the same done by hand: which embeddings carry noise, in which order, with which weight."""

import copy

import pytest
import torch
from align_hospitals import FEATURES, NOISE, SITES, adam, batch, batches, participant, participants, state
from synchronous import synchronous_iteration
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from grandrounds.methods.fed_align_cl.iteration import Neighbour, train_iteration
from grandrounds.methods.fed_align_cl.loss import make_discriminator
from grandrounds.methods.fed_align_cl.options import EmbeddingNoiseOptions, EncoderAlignmentOptions
from grandrounds.seeding import numpy_generator

LOUD = EmbeddingNoiseOptions("absolute", 1.0, embedding_clip=50.0)
PAPER = EmbeddingNoiseOptions("absolute", 1.0, embedding_clip=50.0, own_embeddings="clean")
EXACT = {"rtol": 0, "atol": 1e-12}


def own_and_others(noise=LOUD):
    hospitals = participants(noise=noise)
    own = {site: hospitals[site].embed(batch(site)[0]) for site in SITES}
    return hospitals["site-1"], own["site-1"], [own[site].noisy.detach() for site in SITES[1:]]


def by_hand(discriminator, own, others, gradient_of_all):
    """Plain gradient descent with the step size of the hospitals; ``gradient_of_all`` gives the direction."""
    for theirs in others:
        logits = discriminator(own), discriminator(theirs)
        loss = gradient_of_all(*logits)
        for parameter, gradient in zip(
            discriminator.parameters(), torch.autograd.grad(loss, list(discriminator.parameters())), strict=True
        ):
            parameter.data -= 0.1 * gradient
    return discriminator.state_dict()


def ones_and_zeros(own, theirs):
    return cross_entropy(own, torch.ones_like(own)) + cross_entropy(theirs, torch.zeros_like(theirs))


def released(own, theirs):
    fooled = cross_entropy(own, torch.ones_like(own)) + cross_entropy(theirs, torch.ones_like(theirs))
    return fooled + 0.1 * ones_and_zeros(own, theirs)


def require_equal(found, expected):
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **EXACT, msg=name)


@pytest.mark.parametrize(("noise", "seen"), [(LOUD, "noisy"), (PAPER, "clean")], ids=["as_sent", "paper"])
def test_a_discriminator_learns_own_embeddings_as_sent_and_takes_a_step_for_each_other_site_in_their_order(noise, seen):
    hospital, own, others = own_and_others(noise)
    learnt = getattr(own, seen).detach()
    expected = by_hand(copy.deepcopy(hospital.discriminator), learnt, others, ones_and_zeros)
    hospital.discriminate(own, others)
    require_equal(hospital.discriminator.state_dict(), expected)


def test_the_released_discriminator_learns_own_embeddings_with_noise():
    hospital, own, others = own_and_others()
    expected = by_hand(copy.deepcopy(hospital.discriminator), own.noisy.detach(), others, released)
    hospital.discriminate(own, others, as_released=True)
    require_equal(hospital.discriminator.state_dict(), expected)


def moved_by(weight):
    hospital = participant("site-1")
    before = state(hospital.network)
    theirs = [make_discriminator(FEATURES, "theirs").double().requires_grad_(False)]
    hospital.learn_jointly(*batch("site-1"), [torch.ones(3, FEATURES, dtype=torch.float64)], theirs, weight)
    return {name: value.detach() - before[name] for name, value in hospital.network.named_parameters()}


def test_a_joint_step_is_classification_and_so_many_times_alignment():
    plain = participant("site-1")
    before = state(plain.network)
    plain.classify(*batch("site-1"))
    next_to_nothing, one, two, three = (moved_by(weight) for weight in (1e-15, 1.0, 2.0, 3.0))
    for name, value in plain.network.named_parameters():
        torch.testing.assert_close(next_to_nothing[name], value.detach() - before[name], **EXACT, msg=name)
        torch.testing.assert_close(two[name], (one[name] + three[name]) / 2, **EXACT, msg=name)
    assert float((three["0.weight"] - one["0.weight"]).abs().max()) > 1e-3


@pytest.mark.parametrize(("noise", "seen"), [(LOUD, "noisy"), (PAPER, "clean")], ids=["as_sent", "paper"])
def test_in_a_joint_step_source_and_target_have_noise_and_in_the_paper_the_target_alone(noise, seen):
    hospital, twin = (participant("site-1", noise=noise) for _ in range(2))
    own = twin.embed(batch("site-1")[0])
    theirs = make_discriminator(FEATURES, "theirs").double().requires_grad_(False)
    others = [torch.ones(3, FEATURES, dtype=torch.float64)]
    found = hospital.learn_jointly(*batch("site-1"), others, [theirs], 1.0)["loss_alignment"]
    expected = sum(
        cross_entropy(judged.detach(), torch.ones(len(judged), dtype=torch.float64))
        for judged in (hospital.discriminator(getattr(own, seen)), theirs(own.noisy))
    )
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize(("noise", "seen"), [(LOUD, "noisy"), (PAPER, "clean")], ids=["as_sent", "paper"])
@pytest.mark.parametrize("part", ["align_as_source", "align_as_target"])
def test_of_a_pair_source_and_target_have_noise_and_in_the_paper_the_target_alone(part, noise, seen):
    hospital, own, _ = own_and_others(noise)
    theirs = make_discriminator(FEATURES, "theirs").double()
    if part == "align_as_source":
        loss, judged = hospital.align_as_source(own), hospital.discriminator(getattr(own, seen))
    else:
        loss, judged = hospital.align_as_target(own, theirs), theirs(own.noisy)
    assert float(loss) == pytest.approx(float(cross_entropy(judged, torch.ones_like(judged)).detach()), abs=1e-12)


def test_clipped_embeddings_travel():
    lengths = participant("site-1").embed(batch("site-1")[0]).clean.detach().norm(dim=1)
    assert float(lengths.min()) < NOISE.embedding_clip < float(lengths.max())
    quiet = participant("site-1", noise=EmbeddingNoiseOptions("absolute", 1e-20, embedding_clip=NOISE.embedding_clip))
    sent = quiet.embed(batch("site-1")[0]).noisy.detach().norm(dim=1)
    torch.testing.assert_close(sent, lengths.clamp_max(NOISE.embedding_clip), rtol=0, atol=1e-8)


PAIR_BY_PAIR = EncoderAlignmentOptions("pair_sequential")


def test_pair_by_pair_two_sites_take_the_steps_of_the_papers_algorithm():
    found, expected = ([participant(site) for site in SITES[:2]] for _ in range(2))
    synchronous_iteration(dict(zip(SITES, found, strict=False)), batches(), "ship_discriminator", "pair_sequential")
    for site, hospital in zip(SITES, expected, strict=False):
        hospital.classify(*batch(site))
    for source, target in ((0, 1), (1, 0)):
        ours, theirs = (expected[index].embed(batch(SITES[index])[0]) for index in (source, target))
        by_hand(expected[source].discriminator, ours.source.detach(), [theirs.noisy.detach()], ones_and_zeros)
        expected[source].align_as_source(ours)
        expected[target].align_as_target(theirs, expected[source].discriminator)
    for mine, other in zip(found, expected, strict=True):
        require_equal(mine.network.state_dict(), other.network.state_dict())
        require_equal(mine.discriminator.state_dict(), other.discriminator.state_dict())


def test_pair_by_pair_between_communications_a_site_is_the_source_with_its_own_and_the_target_with_the_others():
    hospital, expected = (participant("site-1") for _ in range(2))
    images, labels = batch("site-1")
    bank = torch.ones(2, FEATURES, dtype=torch.float64)
    theirs = make_discriminator(FEATURES, "theirs").double().requires_grad_(False)
    others = {"site-2": Neighbour(bank, theirs, 2)}
    train_iteration(hospital, "site-1", images, labels, others, PAIR_BY_PAIR, numpy_generator(1))
    expected.classify(images, labels)
    own = expected.embed(images)
    by_hand(expected.discriminator, own.source.detach(), [bank], ones_and_zeros)
    expected.align_as_source(own)
    expected.align_as_target(expected.embed(images), theirs)
    require_equal(hospital.network.state_dict(), expected.network.state_dict())
    require_equal(hospital.discriminator.state_dict(), expected.discriminator.state_dict())


def test_pair_by_pair_an_encoder_of_three_sites_takes_four_steps_and_a_discriminator_two():
    hospitals = participants(adam(0.01))
    synchronous_iteration(hospitals, batches(), "ship_discriminator", "pair_sequential")
    for hospital in hospitals.values():
        taken = {role: int(made.state_dict()["state"][0]["step"]) for role, made in hospital._optimizers.items()}
        assert taken == {"classification": 1, "adversarial": 4, "discriminator": 2}
