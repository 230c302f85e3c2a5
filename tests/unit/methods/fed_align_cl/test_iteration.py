"""Iterations between communications: what each update moves and costs, and that optimizers survive."""

import copy

import numpy as np
import pytest
import torch
from align_hospitals import (
    FEATURES,
    SITES,
    adam,
    batch,
    batches,
    make_optimizers,
    moved,
    participant,
    participants,
    state,
)
from synchronous import synchronous_iteration
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.fed_align_cl_ham10000.domain_probe import site_probe
from grandrounds.errors import ConfigurationError, DataError, GrandRoundsError
from grandrounds.methods.fed_align_cl.curriculum import correct_predictions
from grandrounds.methods.fed_align_cl.executor import averaged_entries
from grandrounds.methods.fed_align_cl.iteration import (
    AlignmentTrainer,
    Neighbour,
    require_network_channels,
    train_iteration,
)
from grandrounds.methods.fed_align_cl.loss import make_discriminator, received_discriminator
from grandrounds.methods.fed_align_cl.options import (
    ROLES,
    EmbeddingNoiseOptions,
    EncoderAlignmentOptions,
)
from grandrounds.models.inference.forward import Forward
from grandrounds.models.registry import build_model
from grandrounds.models.split import split_network
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import numpy_generator, torch_generator

ENCODER, HEAD = ("0.", "1.", "3."), ("4.",)


def neighbours(of: str) -> dict[str, Neighbour]:
    found = {}
    for site in SITES:
        if site != of:
            bank = participant(site).embed(batch(site)[0]).noisy.detach()
            found[site] = Neighbour(bank, make_discriminator(FEATURES, site, "sent").double(), len(bank))
    return found


def iterate(hospital: AlignmentTrainer, update: str, site: str = "site-1", step: int = 0) -> dict[str, torch.Tensor]:
    options = EncoderAlignmentOptions(update=update)
    return train_iteration(hospital, site, *batch(site, step), neighbours(site), options, numpy_generator(step))


@pytest.mark.parametrize("update", ["summed", "joint", "pair_sequential", "as_released"])
def test_every_update_trains_the_network_and_the_own_discriminator_only(update):
    hospital, others = participant("site-1"), neighbours("site-1")
    network, discriminator = state(hospital.network), state(hospital.discriminator)
    sent = {site: state(other.discriminator) for site, other in others.items()}
    losses = train_iteration(
        hospital, "site-1", *batch("site-1"), others, EncoderAlignmentOptions(update=update), numpy_generator(1)
    )
    assert moved(network, hospital.network, ENCODER)
    assert moved(network, hospital.network, HEAD)
    assert moved(discriminator, hospital.discriminator)
    assert not any(moved(sent[site], other.discriminator) for site, other in others.items())
    assert set(losses) == {"loss", "loss_discriminator", "loss_alignment"} - {
        "loss_alignment" if update == "as_released" else ""
    }
    assert all(not loss.requires_grad and bool(torch.isfinite(loss)) for loss in losses.values())


@pytest.mark.parametrize(("update", "inert"), [("as_released", True), ("summed", False), ("pair_sequential", False)])
def test_the_released_update_leaves_the_encoder_where_classification_put_it(update, inert):
    plain, aligned = participant("site-1"), participant("site-1")
    plain.classify(*batch("site-1"))
    iterate(aligned, update)
    parameters = {name: value.detach().clone() for name, value in plain.network.named_parameters()}
    assert moved(parameters, aligned.network) is not inert


@pytest.mark.parametrize(("update", "noted"), [("summed", 1), ("joint", 1), ("pair_sequential", 1), ("as_released", 2)])
def test_a_batch_is_noted_once_in_the_running_statistics_but_twice_as_released(update, noted):
    hospital = participant("site-1")
    iterate(hospital, update)
    assert int(hospital.network[1].num_batches_tracked) == noted


def test_without_neighbours_an_iteration_is_plain_training():
    plain, alone = participant("site-1"), participant("site-1")
    loss = plain.classify(*batch("site-1"))
    losses = train_iteration(alone, "site-1", *batch("site-1"), {}, EncoderAlignmentOptions(), numpy_generator(1))
    assert losses == {"loss": loss}
    assert not moved(state(plain.network), alone.network)


@pytest.mark.parametrize("update", ["summed", "joint", "moments"])
def test_what_is_added_to_logits_counts_in_every_loss_of_classification(update):
    images, labels = batch("site-1")
    added = torch.tensor([0.75, 0.25], dtype=torch.float64).log()
    plain, adjusted = participant("site-1"), participant("site-1")
    expected = torch.nn.functional.cross_entropy(copy.deepcopy(plain.network)(images) + added, labels)
    trainer = AlignmentTrainer(
        adjusted.network,
        adjusted.discriminator,
        make_optimizers(adjusted.network, adjusted.discriminator),
        EmbeddingNoiseOptions(),
        added=added,
    )
    bank = plain.embed(images).noisy.detach() if update == "moments" else None
    options = EncoderAlignmentOptions(update=update)
    losses = train_iteration(trainer, "site-1", images, labels, neighbours("site-1"), options, numpy_generator(1), bank)
    assert float(losses["loss"]) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("update", ["summed", "joint"])
def test_the_order_in_which_neighbours_are_named_does_not_matter(update):
    found = []
    for order in (1, -1):
        hospital = participant("site-1")
        others = dict(list(neighbours("site-1").items())[::order])
        options = EncoderAlignmentOptions(update=update)
        train_iteration(hospital, "site-1", *batch("site-1"), others, options, numpy_generator(1))
        found.append(hospital)
    assert not moved(state(found[0].network), found[1].network)


def test_a_neighbour_that_sent_nothing_is_left_out():
    hospital, others = participant("site-1"), neighbours("site-1")
    del others["site-2"]
    losses = train_iteration(
        hospital, "site-1", *batch("site-1"), others, EncoderAlignmentOptions(), numpy_generator(1)
    )
    assert bool(torch.isfinite(losses["loss_alignment"]))


def test_with_fresh_banks_and_discriminators_it_is_a_synchronous_iteration():
    """The only difference is freshness: with what the others would send just now it makes the same step."""
    together = participants()
    synchronous_iteration(together, batches(), "ship_discriminator")
    # What all send at that moment, by the same steps.
    ahead = participants()
    for site in SITES:
        ahead[site].classify(*batch(site))
    own = {site: ahead[site].embed(batch(site)[0]) for site in SITES}
    for site in SITES:
        ahead[site].discriminate(own[site], [own[other].noisy for other in SITES if other != site])
    for site in SITES:
        others = {}
        for other in SITES:
            if other != site:
                sent = ahead[other].discriminator.state_dict()
                others[other] = Neighbour(
                    own[other].noisy.detach(), received_discriminator(sent, FEATURES, other), len(own[other].noisy)
                )
        hospital = participant(site)
        train_iteration(hospital, site, *batch(site), others, EncoderAlignmentOptions(), numpy_generator(1))
        for name, value in together[site].network.state_dict().items():
            torch.testing.assert_close(hospital.network.state_dict()[name], value, rtol=0, atol=1e-12)


def flops(work) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("update", "most", "least"),
    [("joint", 3, 2.5), ("summed", 6, 5), ("as_released", 4, 3), ("pair_sequential", 15, 13)],
)
def test_an_image_costs_so_many_forward_passes(update, most, least):
    model = build_model(ModelSpec("resnet22", 2, channels=1), seed=1)
    discriminator = make_discriminator(256, "own")
    hospital = AlignmentTrainer(model, discriminator, make_optimizers(model, discriminator), EmbeddingNoiseOptions())
    images, labels = torch.randn(4, 1, 128, 128, generator=torch_generator("images")), torch.tensor([0, 1, 0, 1])
    banks = torch.randn(4, 256, generator=torch_generator("bank"))
    others = {site: Neighbour(banks, make_discriminator(256, site), 4) for site in ("site-2", "site-3")}
    with torch.no_grad():
        forward = flops(lambda: model(images))
    options = EncoderAlignmentOptions(update=update)
    spent = flops(lambda: train_iteration(hospital, "site-1", images, labels, others, options, numpy_generator(1)))
    # The discriminators' share is below a thousandth.
    assert least < spent / forward <= most * 1.001


def test_optimizers_survive_a_deployment_and_a_new_process():
    torch_noise = EmbeddingNoiseOptions("absolute", 1e-24)
    whole = participant("site-1", adam(0.01), torch_noise)
    iterate(whole, "summed", step=0)
    kept = {role: copy.deepcopy(whole._optimizers[role].state_dict()) for role in ROLES}
    again = participant("site-1", adam(0.01), torch_noise)
    again.network.load_state_dict(whole.network.state_dict())
    again.discriminator.load_state_dict(whole.discriminator.state_dict())
    for role in ROLES:
        again._optimizers[role].load_state_dict(kept[role])
    forgetful = participant("site-1", adam(0.01), torch_noise)
    forgetful.network.load_state_dict(whole.network.state_dict())
    for hospital in (whole, again, forgetful):
        iterate(hospital, "summed", step=1)
    for name, value in whole.network.state_dict().items():
        torch.testing.assert_close(again.network.state_dict()[name], value, rtol=0, atol=1e-9)
    assert float((forgetful.network[0].weight - whole.network[0].weight).detach().abs().max()) > 1e-4


def test_the_roles_have_their_parameters():
    model = build_model(ModelSpec("resnet22", 2, channels=1), seed=1)
    optimizers = make_optimizers(model, make_discriminator(256, "d"))
    sizes = {
        role: sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        for role, optimizer in optimizers.items()
    }
    assert sizes == {"classification": 2_841_202, "adversarial": 2_799_536, "discriminator": 1_033}
    assert {optimizer.defaults["lr"] for optimizer in optimizers.values()} == {1e-5}


def test_diverged_training_stops_with_advice():
    images, labels = batch("site-1")
    with pytest.raises(GrandRoundsError, match=r"the loss of classification is not finite"):
        participant("site-1").classify(images * float("inf"), labels)


def test_a_site_without_one_class_trains():
    hospital = participant("site-1")
    images, _ = batch("site-1")
    before = state(hospital.network)
    loss = hospital.classify(images, torch.zeros(len(images), dtype=torch.int64))
    assert bool(torch.isfinite(loss))
    assert moved(before, hospital.network)


def separable_sites(update: str) -> float:
    """Accuracy of a linear probe for the site on three shifted Gaussians, after training with an update."""
    generator = torch_generator("domains")
    shifts = torch.tensor([[3.0, 0, 0, 0, 0, 0], [0, 3.0, 0, 0, 0, 0], [0, 0, 3.0, 0, 0, 0]], dtype=torch.float64)
    hospitals = participants(adam(0.003), EmbeddingNoiseOptions("absolute", 0.01))
    start = hospitals["site-1"].network.state_dict()
    images = {}
    for site, shift in zip(SITES, shifts, strict=True):
        hospitals[site].network.load_state_dict(start)
        images[site] = torch.randn(120, 6, generator=generator, dtype=torch.float64) + shift
    labels = {site: (images[site][:, 5] > 0).long() for site in SITES}
    for step in range(160):
        rows = numpy_generator("rows", step).choice(120, 24, replace=False)
        embedded = {site: hospitals[site].embed(images[site][rows]) for site in SITES}
        banks = {site: embedded[site].noisy.detach() for site in SITES}
        sent = {site: copy.deepcopy(hospitals[site].discriminator).requires_grad_(False) for site in SITES}
        for site in SITES:
            others = {other: Neighbour(banks[other], sent[other], 24) for other in SITES if other != site}
            train_iteration(
                hospitals[site],
                site,
                images[site][rows],
                labels[site][rows],
                others,
                EncoderAlignmentOptions(update=update, weight=100.0),
                numpy_generator("draws", step),
                embedded[site].clean.detach() if update == "moments" else None,
            )
        if step % 5 == 4:
            mean = {
                name: torch.stack([hospitals[site].network.state_dict()[name].double() for site in SITES]).mean(0)
                for name in start
            }
            for site in SITES:
                hospitals[site].network.load_state_dict(mean)
    embeddings = []
    for site in SITES:
        hospitals[site].network.eval()
        with torch.no_grad():
            embeddings.append(split_network(hospitals[site].network).encoder.eval()(images[site]).numpy())
    return site_probe(np.concatenate(embeddings), np.repeat(SITES, 120), seed=1).accuracy


def test_alignment_hides_the_site_and_the_released_one_does_not():
    released = separable_sites("as_released")
    assert released > 0.8
    assert separable_sites("summed") < released - 0.15
    assert separable_sites("moments") < released - 0.1


def test_matching_moments_trains_no_discriminator():
    hospital, others = participant("site-1"), neighbours("site-1")
    discriminator = state(hospital.discriminator)
    own = hospital.embed(batch("site-1")[0]).clean.detach()
    options = EncoderAlignmentOptions(update="moments")
    losses = train_iteration(hospital, "site-1", *batch("site-1"), others, options, numpy_generator(1), own)
    assert losses.keys() == {"loss", "loss_alignment"}
    assert not moved(discriminator, hospital.discriminator)
    with pytest.raises(ValueError, match="needs the site's own bank"):
        train_iteration(hospital, "site-1", *batch("site-1"), others, options, numpy_generator(1))


def test_predictions_are_made_in_evaluation_mode_and_leave_the_mode_alone():
    hospital = participant("site-1")
    images, labels = batch("site-1")
    before = state(hospital.network)
    flags = correct_predictions(Forward(hospital.network), [(images[:3], labels[:3]), (images[3:], labels[3:])])
    assert hospital.network.training
    assert not moved(before, hospital.network)
    expected = hospital.network.eval()(images).argmax(1) == labels
    assert flags.tolist() == expected.tolist()
    assert correct_predictions(Forward(hospital.network), []).shape == (0,)
    assert not hospital.network.training


def test_images_with_other_channels_are_refused():
    model = build_model(ModelSpec("resnet22", 2, channels=1), seed=1)
    require_network_channels(1, model, "site-1")
    with pytest.raises(DataError, match=r"site-1: images have 3 channels"):
        require_network_channels(3, model, "site-1")


def test_what_is_averaged():
    model = build_model(ModelSpec("resnet22", 2, channels=1), seed=1)
    names = set(model.state_dict())
    assert averaged_entries(model) == names
    assert len(names - averaged_entries(model, "local_norm")) == 23 * 5
    local = names - averaged_entries(model, "local_statistics")
    assert len(local) == 23 * 3
    assert all(name.endswith(("running_mean", "running_var", "num_batches_tracked")) for name in local)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: EncoderAlignmentOptions("moments", bank_encoder="own"),
            "compares banks of one encoder; set bank_encoder to mean",
        ),
        (
            lambda: EncoderAlignmentOptions("moments", alignment_learning_rate=1e-5),
            "update=moments has one step at learning_rate",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_double_precision_is_kept_in_the_loss():
    hospital = participant("site-1")
    images, labels = batch("site-1")
    expected = torch.nn.functional.cross_entropy(copy.deepcopy(hospital.network)(images), labels)
    loss = hospital.classify(images, labels)
    assert loss.dtype == torch.float64
    assert float(loss) == pytest.approx(expected.item(), abs=1e-14)
