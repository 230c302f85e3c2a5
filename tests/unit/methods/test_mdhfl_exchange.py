"""The server adds up what it may, in one order, refuses the rest by name, and goes on after a restart as if nothing was."""

import pytest
import torch

from grandrounds.errors import CheckpointError, ConfigurationError, MessageError
from grandrounds.methods.mutual.contributions import leave_one_out_mean, loss_scale, mean_of_all
from grandrounds.methods.mutual.exchange import RowExchange, RowMessage
from grandrounds.methods.mutual.options import AlignmentOptions, ExchangeOptions, LocalOptions
from grandrounds.methods.mutual.soft_labels import bytes_of_rows, decode_sum, encode_rows, encode_sum
from grandrounds.seeding import torch_generator

PUBLIC = "ab" * 32
D = {site: torch.tensor([row], dtype=torch.float64) for site, row in
     (("site-1", (0.5, 0.5)), ("site-2", (0.9, 0.1)), ("site-3", (0.2, 0.8)))}  # fmt: skip


def exchange(**options):
    return RowExchange(PUBLIC, 2, ExchangeOptions(wire="fp64", **options))


def send(server, site, number=1, rows=None, **more):
    server.accept(site, RowMessage(number, D[site] if rows is None else rows, PUBLIC, **more), number, 1)


def after(sites, number=1, **options):
    server = exchange(**options)
    for site in sites:
        send(server, site, number)
    return server


def test_three_sites_get_the_sum_and_each_takes_its_own_rows_out():
    total = after(D).total(1)
    torch.testing.assert_close(total.total, torch.tensor([[1.6, 1.4]], dtype=torch.float64))
    assert total.rounds == {"site-1": 1, "site-2": 1, "site-3": 1}
    expected = {"site-1": (0.55, 0.45), "site-2": (0.35, 0.65), "site-3": (0.7, 0.3)}
    for site, mean in expected.items():
        target = leave_one_out_mean(total, site, {1: D[site]})
        torch.testing.assert_close(target, torch.tensor([mean], dtype=torch.float64))
        assert loss_scale(total, site) == 1


def test_the_order_of_arrival_changes_no_bit():
    rows = {f"site-{n}": torch.randn(40, 5, generator=torch_generator(n), dtype=torch.float64).softmax(1) for n in
            range(1, 12)}  # fmt: skip
    totals = []
    for order in (list(rows), list(reversed(rows))):
        server = RowExchange(PUBLIC, 5, ExchangeOptions(wire="fp64"))
        for site in order:
            server.accept(site, RowMessage(1, rows[site], PUBLIC), 1, 40)
        totals.append(server.total(1).total)
    assert torch.equal(*totals)


def test_a_late_site_takes_nothing_out_and_a_single_contributor_has_nothing_to_learn():
    late = after(["site-2", "site-3"]).total(1)
    torch.testing.assert_close(
        leave_one_out_mean(late, "site-1", {1: D["site-1"]}), torch.tensor([[0.55, 0.45]], dtype=torch.float64)
    )
    alone = after(["site-1"]).total(1)
    assert leave_one_out_mean(alone, "site-1", {1: D["site-1"]}) is None
    assert exchange().total(1) is None


def test_rows_of_an_absent_site_count_as_long_as_they_are_young_enough():
    server = after(D, max_age=2)
    for number in (2, 3, 4):
        send(server, "site-2", number)
        send(server, "site-3", number)
        total = server.total(number)
        assert total.rounds.get("site-1") == (1 if number <= 3 else None)
    strict = after(D)
    send(strict, "site-2", 2)
    assert strict.total(2).rounds == {"site-2": 2}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.tensor([[float("nan"), 1.0]]), "rows of site-1: row 0 has an entry that is not finite"),
        (torch.tensor([[-0.1, 1.1]]), "rows of site-1: row 0 has a negative entry"),
        (torch.tensor([[0.5, 0.502]]), "rows of site-1: row 0 does not sum to 1"),
        (
            torch.tensor([[0.5, 0.3, 0.2]]),
            "rows of site-1: expected 2 classes, got 3; all models need the same classes",
        ),
        (torch.tensor([[0.5, 0.5]] * 2), r"rows of site-1: expected shape \(1, 2\), got \(2, 2\)"),
        (torch.tensor([[1, 0]]), r"rows of site-1: expected one of fp64, fp32, fp16, uint8, got torch\.int64"),
    ],
)
def test_refused_rows_are_named_and_leave_no_trace(rows, message):
    server = after(["site-2"])
    with pytest.raises(MessageError, match=message):
        send(server, "site-1", rows=rows)
    assert list(server.total(1).rounds) == ["site-2"]


def test_rows_of_another_exchange_or_another_public_set_are_refused():
    server = exchange()
    with pytest.raises(MessageError, match="rows of site-1 are of exchange 1, expected 2"):
        server.accept("site-1", RowMessage(1, D["site-1"], PUBLIC), 2, 1)
    with pytest.raises(MessageError, match=r"rows of site-1 are about another public set \(cdcdcdcdcdcd, here abab"):
        server.accept("site-1", RowMessage(1, D["site-1"], "cd" * 32), 1, 1)
    assert server.total(1) is None


def send_losses(server, number, losses, changes=(0, 0, 0)):
    for site, loss, change in zip(D, losses, changes, strict=True):
        send(server, site, number, loss=loss, change=change)
    return server.total(number)


def test_confidence_counts_from_the_second_exchange_on():
    server = exchange(weighting="ccr")
    first = send_losses(server, 1, (1, 1, 1))
    assert list(first.weights.values()) == [0.5] * 3
    assert loss_scale(first, "site-1") == 1
    second = send_losses(server, 2, (0.5, 0.8, 1))
    assert list(second.weights.values()) == pytest.approx([0.41474187, 0.30724834, 0.27800979], abs=1e-8)
    expected = sum(weight * D[site] for site, weight in second.weights.items())
    torch.testing.assert_close(second.total, expected)
    assert loss_scale(second, "site-1") == pytest.approx(0.30724834 + 0.27800979, abs=1e-8)


def test_enhanced_confidence_uses_the_changes_and_its_own_strength():
    server = exchange(weighting="eccr")
    send_losses(server, 1, (1, 1, 1))
    weights = send_losses(server, 2, (0.5, 0.8, 1), (1, 0, 0)).weights
    assert list(weights.values()) == pytest.approx([1.3 / 2.7, 0.9 / 2.7, 0.5 / 2.7])
    weaker = exchange(weighting="eccr", strength=0.0)
    send_losses(weaker, 1, (1, 1, 1))
    assert list(send_losses(weaker, 2, (0.5, 0.8, 1)).weights.values()) == pytest.approx([1 / 3] * 3)


def test_confidence_with_a_newcomer_or_alone_is_equal():
    server = exchange(weighting="ccr")
    for site in ("site-1", "site-2"):
        send(server, site, 1, loss=1.0)
    assert list(send_losses(server, 2, (0.5, 0.8, 1)).weights.values()) == [0.5] * 3
    send(server, "site-1", 3, loss=0.4)
    assert server.total(3).weights == {"site-1": 1.0}


def test_confidence_is_told_once_in_an_epoch_and_holds_for_all_its_exchanges():
    server = RowExchange(PUBLIC, 2, ExchangeOptions(weighting="ccr"), per_epoch=2)
    send_losses(server, 1, (1, 1, 1))
    # What is told in the middle of an epoch does not count, and need not be told.
    assert list(send_losses(server, 2, (0.1, 0.1, 0.9)).weights.values()) == [0.5] * 3
    told = send_losses(server, 3, (0.5, 0.8, 1)).weights
    assert list(told.values()) == pytest.approx([0.41474187, 0.30724834, 0.27800979], abs=1e-8)
    for site in D:
        send(server, site, 4)
    assert server.total(4).weights == told
    with pytest.raises(MessageError, match="client confidence needs a loss"):
        send(server, "site-1", 5)


def test_who_joins_in_the_middle_of_an_epoch_makes_all_weights_equal():
    server = RowExchange(PUBLIC, 2, ExchangeOptions(weighting="ccr"), per_epoch=2)
    for number, loss in ((1, 1.0), (3, 0.5)):
        send(server, "site-1", number, loss=loss)
        send(server, "site-2", number, loss=1.0)
    for site in D:
        send(server, site, 4)
    assert list(server.total(4).weights.values()) == [0.5] * 3


@pytest.mark.parametrize("loss", [None, 0.0, -1.0, float("nan"), float("inf")])
def test_confidence_needs_a_loss(loss):
    server = exchange(weighting="ccr")
    with pytest.raises(
        MessageError, match="rows of site-1: client confidence needs a loss that is positive and finite"
    ):
        send(server, "site-1", loss=loss)
    with pytest.raises(MessageError, match="the change of the model must be at least 0 and finite, got -1"):
        send(server, "site-1", loss=1.0, change=-1)
    assert server.total(1) is None


def test_fedmds_consensus_is_the_mean_of_the_logits_with_the_own():
    server = exchange(content="logits")
    for site, logits in zip(D, ((2.0, -1.0), (0.0, 5.0), (-8.0, 2.0)), strict=True):
        send(server, site, rows=torch.tensor([logits]))
    torch.testing.assert_close(mean_of_all(server.total(1)), torch.tensor([[-2.0, 2.0]]))
    with pytest.raises(MessageError, match="row 0 has an entry that is not finite"):
        send(server, "site-1", rows=torch.tensor([[float("inf"), 0.0]]))


def test_a_restarted_server_makes_the_same_sums():
    def run(restart):
        server = exchange(weighting="ccr", max_age=1)
        send_losses(server, 1, (1, 1, 1))
        if restart:
            state = server.state_dict()
            server = exchange(weighting="ccr", max_age=1)
            server.load_state_dict(state)
        send(server, "site-1", 2, loss=0.5)
        send(server, "site-3", 2, loss=0.9)
        return server.total(2)

    straight, resumed = run(False), run(True)
    assert torch.equal(straight.total, resumed.total)
    assert straight.rounds == resumed.rounds == {"site-1": 2, "site-2": 1, "site-3": 2}
    with pytest.raises(CheckpointError, match="is about the public set abababababab, this run about cdcdcdcdcdcd"):
        RowExchange("cd" * 32, 2, ExchangeOptions()).load_state_dict(exchange().state_dict())


@pytest.mark.parametrize(("wire", "error"), [("fp64", 1e-15), ("fp32", 1e-6), ("fp16", 2e-3), ("uint8", 0.02)])
def test_the_sum_travels_in_the_size_of_one_sites_rows(wire, error):
    rows = {f"site-{n}": torch.randn(50, 13, generator=torch_generator(n), dtype=torch.float64).softmax(1) for n in
            range(4)}  # fmt: skip
    server = RowExchange(PUBLIC, 13, ExchangeOptions(wire=wire))
    for site, own in rows.items():
        server.accept(site, RowMessage(1, encode_rows(own, wire), PUBLIC), 1, 50)
    total = server.total(1)
    sent = encode_sum(total, wire)
    assert sent.numel() * sent.element_size() == bytes_of_rows(50, 13, wire)
    back = decode_sum(sent, total.rounds, total.weights, 50, 13)
    assert float((back.total - sum(rows.values())).abs().max()) < 4 * error
    assert back.rounds == total.rounds


def test_a_sum_that_is_none_is_refused():
    good = torch.tensor([[0.5, 0.5]])
    with pytest.raises(MessageError, match="the sum of the rows: row 0 does not sum to 1"):
        decode_sum(good * 2, {"a": 1}, {"a": 1.0}, 1, 2)
    with pytest.raises(MessageError, match=r"rounds of \['a'\] and weights of \['b'\]"):
        decode_sum(good, {"a": 1}, {"b": 1.0}, 1, 2)
    scores = decode_sum(good * 7, {"a": 1, "b": 1}, {"a": 1.0, "b": 1.0}, 1, 2, scores=True)
    torch.testing.assert_close(scores.total, good * 14)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (ExchangeOptions, {"wire": "int4"}, "wire must be one of fp64, fp32, fp16, uint8, got 'int4'"),
        (ExchangeOptions, {"weighting": "fair"}, "weighting must be one of uniform, ccr, eccr, got 'fair'"),
        (ExchangeOptions, {"max_age": -1}, "max_age must be at least 0, got -1"),
        (ExchangeOptions, {"chunk": 0}, "chunk must be at least 1"),
        (ExchangeOptions, {"strength": -0.5}, r"strength must be at least 0, got -0\.5"),
        (ExchangeOptions, {"content": "logits", "wire": "uint8"}, "uint8 holds probabilities only"),
        (ExchangeOptions, {"content": "logits", "weighting": "ccr"}, "weighting ccr is for probabilities"),
        (ExchangeOptions, {"max_age": 1, "chunk": 16}, "max_age 1 needs exchanges about the same images"),
        (AlignmentOptions, {"alignment": "kl"}, "alignment must be one of divergence, digest, none, got 'kl'"),
        (ExchangeOptions, {"public_batch": 1}, "public_batch must be at least 2"),
        (AlignmentOptions, {"alignment_rate": 0.0}, "alignment_rate must be positive"),
        (LocalOptions, {"loss": "sce"}, "loss must be one of symmetric, cross_entropy, refined, got 'sce'"),
        (LocalOptions, {"local_epochs": 0}, "local_epochs must be positive, got 0"),
        (LocalOptions, {"recalibrate_bn": "yes"}, "recalibrate_bn must be true or false, got 'yes'"),
        (LocalOptions, {"pretrain_epochs": -1}, "pretrain_epochs must be at least 0"),
        (LocalOptions, {"label_floor": 1.0}, "label_floor must be above 0 and below 1"),
        (LocalOptions, {"ce_weight": -1.0}, "ce_weight must be at least 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(kind, options, message):
    with pytest.raises(ConfigurationError, match=message):
        kind(**options)
