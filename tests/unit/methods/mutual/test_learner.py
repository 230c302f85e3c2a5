"""Four sites that exchange messages end as one process that sees all models does, to the last digits."""

import copy
from typing import NamedTuple

import numpy as np
import pytest
import torch
from mutual_site import site_context
from torch import nn
from torch.nn import functional as F

from grandrounds.errors import ConfigurationError
from grandrounds.methods.mutual.exchange import SoftLabelExchange
from grandrounds.methods.mutual.executor import MutualLearner, parameter_change
from grandrounds.methods.mutual.options import AlignmentOptions, ExchangeOptions, LocalOptions
from grandrounds.methods.mutual.schedule import exchange_chunks, local_batches, public_order
from grandrounds.methods.mutual.soft_labels import SoftLabels, decode, encode
from grandrounds.seeding import numpy_generator

SITES = tuple(f"site-{number}" for number in range(1, 5))
CLASSES, SIDE, EPOCHS, BATCH, SEED = 3, 6, 2, 4, 7
PUBLIC = numpy_generator("public").integers(0, 256, (18, SIDE, SIDE, 3), dtype=np.uint8)


def network(number):
    """Two kinds of networks, in turns; the second has batch norm."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(number)
        if number % 2:
            return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()
        # Without the bias: batch norm takes it out, and Adam would walk along the rounding errors of its gradient of zero.
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)
        ).double()


def private(site):
    generator = numpy_generator("private", site)
    images = generator.integers(0, 256, (14, SIDE, SIDE, 3), dtype=np.uint8)
    return site_context(images, generator.integers(0, CLASSES, 14), np.arange(1, 14), site, SEED)


class Choices(NamedTuple):
    exchange: ExchangeOptions
    alignment: AlignmentOptions
    local: LocalOptions


def choices(exchange=None, alignment=None, local=None):
    return Choices(
        ExchangeOptions(**({"wire": "fp64", "public_batch": BATCH} | (exchange or {}))),
        AlignmentOptions(**(alignment or {})),
        LocalOptions(**({"batch_size": BATCH, "local_view": "none", "pretrain_epochs": 1.0} | (local or {}))),
    )


def federation(chosen, sites=SITES):
    return {site: MutualLearner(private(site), network(int(site[-1])), PUBLIC, EPOCHS, *chosen) for site in sites}


def send(server, site, member, number, part):
    """Soft labels up."""
    server.accept(site, member.publish(number, part), number, len(part), member.mean_loss(), member.change)


def exchange_once(server, members, number, part, epoch, chosen, absent=()):
    """What the messages do: rows up, one sum down, the same for all."""
    for site, member in members.items():
        if site not in absent:
            send(server, site, member, number, part)
    total = server.total(number)
    sent = encode(total.mean(), chosen.exchange.wire)
    logits = chosen.exchange.content == "logits"
    for site, member in members.items():
        if site not in absent:
            mean = decode(sent, len(part), CLASSES, "the sum", logits)
            arrived = SoftLabels(mean * sum(total.weights.values()), total.rounds, total.weights)
            member.align(arrived, part, number, epoch)


def run_federation(chosen, members=None, epochs=range(1, EPOCHS + 1), server=None, pretrain=True):
    members = members or federation(chosen)
    server = server or SoftLabelExchange(CLASSES, chosen.exchange)
    if pretrain:
        for member in members.values():
            member.pretrain()
    for epoch in epochs:
        order = public_order(len(PUBLIC), SEED, epoch, chosen.exchange.per_round)
        parts = exchange_chunks(order, BATCH, chosen.exchange.chunk)
        for index, part in enumerate(parts):
            exchange_once(server, members, (epoch - 1) * len(parts) + index + 1, part, epoch, chosen)
        for member in members.values():
            member.train_locally(epoch)
    return members, server


def pixels(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2).to(torch.float32).div(255).double()


def symmetric(logits, labels):
    """Cross-entropy with weight 0.1 and reverse cross-entropy, from the table of labels with its floor."""
    given = F.one_hot(labels, CLASSES).double().clamp(min=1e-4).log()
    return 0.1 * F.cross_entropy(logits, labels) - (logits.softmax(1) * given).sum(1).mean()


def train_together(models, epoch, epochs):
    for site, model in models.items():
        own = private(site)
        model.train()
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        generator = numpy_generator(SEED, "site", site, epoch, "private batches")
        for batch in local_batches(own.data.rows("labelled"), BATCH, epochs, generator):
            optimiser.zero_grad()
            loss = symmetric(model(pixels(own.data.images[batch])), torch.from_numpy(own.data.labels[batch]))
            loss.backward()
            optimiser.step()


def one_process(local_epochs=1.0, public=18):
    """All models in one loop: divergences from every other model, no sums, no messages."""
    models = {site: network(int(site[-1])) for site in SITES}
    train_together(models, 0, 1.0)
    images = pixels(PUBLIC)
    for epoch in range(1, EPOCHS + 1):
        with torch.no_grad():
            rows = {site: model.eval()(images).softmax(1) for site, model in models.items()}
        order = public_order(18, SEED, epoch, public)
        for site, model in models.items():
            model.train()
            optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
            for start in range(0, public - BATCH + 1, BATCH):
                batch = order[start : start + BATCH]
                optimiser.zero_grad()
                own = model(images[batch]).log_softmax(1)
                others = [F.kl_div(own, rows[other][batch], reduction="batchmean") for other in SITES if other != site]
                torch.stack(others).mean().backward()
                optimiser.step()
        train_together(models, epoch, local_epochs)
    return models


def distance(first, second):
    return max(
        float((a - b).abs().max())
        for site in first
        for a, b in zip(first[site].state_dict().values(), second[site].state_dict().values(), strict=True)
    )


def networks_of(members):
    return {site: member.network for site, member in members.items()}


@pytest.mark.parametrize(
    ("exchange", "local", "together"),
    [({}, {}, {}), ({"per_round": 9}, {"local_epochs": 0.7}, {"public": 9, "local_epochs": 0.7})],
)
def test_four_sites_equal_one_process(exchange, local, together):
    members, _ = run_federation(choices(exchange=exchange, local=local))
    assert distance(networks_of(members), one_process(**together)) < 1e-10
    assert distance(networks_of(members), {site: network(int(site[-1])) for site in SITES}) > 1e-2


def test_without_alignment_every_site_trains_alone():
    members, _ = run_federation(choices(alignment={"alignment": "none"}))
    alone = {site: network(int(site[-1])) for site in SITES}
    for epoch in range(EPOCHS + 1):
        train_together(alone, epoch, 1.0)
    # Running statistics too: rows are computed without leaving a trace.
    assert distance(networks_of(members), alone) < 1e-12
    assert distance(networks_of(members), one_process()) > 1e-4


def test_cross_entropy_and_the_symmetric_loss_are_different_choices():
    ours, theirs = (networks_of(run_federation(choices(local=local))[0]) for local in ({}, {"loss": "cross_entropy"}))
    assert distance(ours, theirs) > 1e-4


@pytest.mark.parametrize("wire", ["fp32", "fp16", "uint8"])
def test_a_site_subtracts_what_it_has_sent(wire):
    chosen = choices(exchange={"wire": wire})
    members = federation(chosen, SITES[:2])
    server = SoftLabelExchange(CLASSES, chosen.exchange)
    part = np.arange(18)
    published = {site: member.publish(1, part) for site, member in members.items()}
    for site, encoded in published.items():
        server.accept(site, encoded, 1, 18)
    target = members["site-1"].target(server.total(1))[0]
    sent = published["site-2"].double() / (255 if wire == "uint8" else 1)
    torch.testing.assert_close(target.double(), sent / sent.sum(1, keepdim=True), atol=1e-6, rtol=0)


def test_rhfl_weighs_by_confidence_and_the_divergence_by_the_weights_of_the_others():
    members, server = run_federation(choices(exchange={"weighting": "ccr"}))
    total = server.total(EPOCHS)
    assert sum(total.weights.values()) == pytest.approx(1)
    assert len(set(total.weights.values())) == 4
    others = sum(weight for site, weight in total.weights.items() if site != "site-1")
    assert members["site-1"].target(total)[1] == pytest.approx(others)
    assert others < 1


def test_in_mdh_fl_the_divergence_is_a_mean_over_the_others():
    members, server = run_federation(choices())
    assert {member.target(server.total(EPOCHS))[1] for member in members.values()} == {1.0}


def mean_distance(network, before):
    pairs = zip(network.parameters(), before.parameters(), strict=True)
    return float(torch.stack([torch.linalg.vector_norm((a - b).detach()) for a, b in pairs]).mean())


@pytest.mark.parametrize("interrupted", [False, True])
def test_rhfl_plus_sends_how_far_alignment_and_labels_have_moved_it_in_an_epoch(interrupted):
    chosen = choices(exchange={"weighting": "eccr", "chunk": BATCH}, local={"loss": "refined"})
    start = federation(chosen, SITES[:2])["site-1"]
    assert start.change == 0
    members, _ = exchange_by_batch(chosen, interrupted)
    member = members["site-1"]
    aligned = copy.deepcopy(member.network)
    member.train_locally(1)
    assert member.change == pytest.approx(mean_distance(member.network, start.network), rel=1e-9)
    assert member.change != pytest.approx(mean_distance(member.network, aligned), rel=0.01)
    # Without alignment, as for a site that no other has reached, local training is the whole epoch.
    before = copy.deepcopy(member.network)
    member.train_locally(2)
    assert member.change == pytest.approx(mean_distance(member.network, before), rel=1e-9)


def test_fedmd_moves_towards_the_mean_logits_of_all():
    chosen = choices(exchange={"content": "logits"}, alignment={"alignment": "digest"})
    members = federation(chosen)
    images = pixels(PUBLIC)
    with torch.no_grad():
        mean = torch.stack([member.network.eval()(images) for member in members.values()]).mean(0)
    server = SoftLabelExchange(CLASSES, chosen.exchange)
    for site, member in members.items():
        send(server, site, member, 1, np.arange(18))
    torch.testing.assert_close(members["site-1"].target(server.total(1))[0], mean, atol=1e-12, rtol=0)
    trained, _ = run_federation(chosen)
    assert distance(networks_of(trained), {site: network(int(site[-1])) for site in SITES}) > 1e-3


def exchange_by_batch(chosen, interrupted):
    """Two sites after all exchanges of an epoch, their state taken out and in again between two of them if asked."""
    members = federation(chosen, SITES[:2])
    server = SoftLabelExchange(CLASSES, chosen.exchange)
    parts = exchange_chunks(np.arange(18), BATCH, BATCH)
    for number, part in enumerate(parts, 1):
        exchange_once(server, members, number, part, 1, chosen)
        for site, member in members.items() if interrupted else ():
            state = copy.deepcopy(member.state_dict())
            members[site] = MutualLearner(private(site), member.network, PUBLIC, EPOCHS, *chosen)
            members[site].load_state_dict(state)
    return members, len(parts)


def test_exchanges_after_each_batch_have_one_adam_for_an_epoch():
    members, exchanges = exchange_by_batch(choices(exchange={"chunk": BATCH}), interrupted=True)
    states = [member.state_dict()["optimizer"]["state"].values() for member in members.values()]
    assert {int(state["step"]) for of_site in states for state in of_site} == {exchanges}


def test_an_interruption_within_an_epoch_changes_nothing():
    chosen = choices(exchange={"chunk": BATCH})
    straight, resumed = (exchange_by_batch(chosen, interrupted)[0] for interrupted in (False, True))
    assert distance(networks_of(resumed), networks_of(straight)) == 0


def test_the_adam_of_an_epoch_is_not_kept_beyond_it():
    member = exchange_by_batch(choices(exchange={"chunk": BATCH}), interrupted=False)[0]["site-1"]
    member.train_locally(1)
    assert member.state_dict()["optimizer"] is None


def test_a_late_site_learns_from_the_others_and_a_single_site_does_not_align():
    chosen = choices()
    members = federation(chosen)
    server = SoftLabelExchange(CLASSES, chosen.exchange)
    part = np.arange(18)
    send(server, "site-2", members["site-2"], 1, part)
    only = server.total(1)
    assert np.isnan(members["site-2"].align(only, part, 1, 1))
    before = copy.deepcopy(members["site-1"].network)
    assert members["site-1"].align(only, part, 1, 1) > 0
    assert distance({"a": before}, {"a": members["site-1"].network}) > 1e-4


def test_a_run_that_is_interrupted_between_epochs_ends_the_same():
    chosen = choices(exchange={"weighting": "eccr", "wire": "uint8"}, local={"local_view": "turns"})
    straight, server = run_federation(chosen)
    expected = server.total(EPOCHS)

    members, server = run_federation(chosen, epochs=[1])
    resumed = federation(chosen)
    for site, member in members.items():
        resumed[site].network.load_state_dict(copy.deepcopy(member.network.state_dict()))
        resumed[site].load_state_dict(copy.deepcopy(member.state_dict()))
    again = SoftLabelExchange(CLASSES, chosen.exchange)
    again.load_state_dict(server.state_dict())
    run_federation(chosen, resumed, epochs=[2], server=again, pretrain=False)
    assert torch.equal(again.total(EPOCHS).values, expected.values)
    assert again.total(EPOCHS).weights == expected.weights
    assert distance(networks_of(resumed), networks_of(straight)) == 0


def test_stale_soft_labels_can_be_subtracted_as_long_as_they_may_be_in_a_sum():
    chosen = choices(exchange={"max_age": 1})
    member = federation(chosen, SITES[:1])["site-1"]
    for number in (1, 2, 3):
        member.publish(number, np.arange(18))
    assert sorted(member.state_dict()["sent"]) == [2, 3]


def test_a_site_with_fewer_images_than_a_batch_is_refused():
    chosen = choices(local={"batch_size": 16})
    member = federation(chosen, SITES[:1])["site-1"]
    with pytest.raises(ConfigurationError, match="13 training images make no batch of 16"):
        member.train_locally(1)


def test_public_images_are_turned_anew_in_each_exchange_and_alike_at_all_sites():
    chosen = choices(alignment={"alignment_view": "turns"})
    others = SoftLabels(torch.full((18, CLASSES), 1 / CLASSES, dtype=torch.float64), {"site-9": 1}, {"site-9": 1.0})

    def loss(site, number):
        member = MutualLearner(private(site), network(2), PUBLIC, EPOCHS, *chosen)
        return member.align(others, np.arange(18), number, 1)

    assert loss("site-1", 1) == loss("site-2", 1) != loss("site-1", 2)


def test_passes_over_an_exchange_are_steps_of_one_optimizer_towards_the_same_soft_labels():
    others = SoftLabels(torch.full((18, CLASSES), 1 / CLASSES, dtype=torch.float64), {"site-9": 1}, {"site-9": 1.0})

    def aligned(epochs, times, view="none"):
        chosen = choices(alignment={"alignment_epochs": epochs, "alignment_view": view})
        member = MutualLearner(private("site-1"), network(1), PUBLIC, EPOCHS, *chosen)
        losses = [member.align(others, np.arange(18), 1, 1) for _ in range(times)]
        return np.mean(losses), member.network.state_dict()

    (loss, state), (expected_loss, expected) = aligned(3, 1), aligned(1, 3)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert not torch.equal(state["1.weight"], aligned(1, 1)[1]["1.weight"])
    assert aligned(3, 1, "turns")[0] != aligned(1, 3, "turns")[0]  # each pass has views of its own


def test_the_change_of_parameters_is_the_mean_of_the_norms():
    after = [torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.ones(4)]
    assert parameter_change(after, [torch.zeros(2, 2), torch.zeros(4)]) == pytest.approx((5 + 2) / 2)
