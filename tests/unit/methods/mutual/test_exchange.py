"""The server adds up what it may, in one order, refuses the rest by name, and goes on after a restart as if nothing was."""

import pytest
import torch

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.methods.mutual.exchange import SoftLabelExchange, ccr_weights, eccr_weights, equal_weights
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.seeding import torch_generator

D = {site: torch.tensor([row], dtype=torch.float64) for site, row in
     (("site-1", (0.5, 0.5)), ("site-2", (0.9, 0.1)), ("site-3", (0.2, 0.8)))}  # fmt: skip


def exchange(**options):
    return SoftLabelExchange(2, ExchangeOptions(wire="fp64", **options))


def send(server, site, number=1, rows=None, **more):
    server.accept(site, D[site] if rows is None else rows, number, 1, **more)


def after(sites, number=1, **options):
    server = exchange(**options)
    for site in sites:
        send(server, site, number)
    return server


def test_three_sites_get_the_sum_and_each_subtracts_its_own_soft_labels():
    total = after(D).total(1)
    torch.testing.assert_close(total.values, torch.tensor([[1.6, 1.4]], dtype=torch.float64))
    assert total.rounds == {"site-1": 1, "site-2": 1, "site-3": 1}
    expected = {"site-1": (0.55, 0.45), "site-2": (0.35, 0.65), "site-3": (0.7, 0.3)}
    for site, mean in expected.items():
        target = total.mean_of_others(site, {1: D[site]})
        torch.testing.assert_close(target, torch.tensor([mean], dtype=torch.float64))
        assert total.loss_scale(site) == 1


def test_the_order_of_arrival_changes_no_bit():
    rows = {f"site-{n}": torch.randn(40, 5, generator=torch_generator(n), dtype=torch.float64).softmax(1) for n in
            range(1, 12)}  # fmt: skip
    totals = []
    for order in (list(rows), list(reversed(rows))):
        server = SoftLabelExchange(5, ExchangeOptions(wire="fp64"))
        for site in order:
            server.accept(site, rows[site], 1, 40)
        totals.append(server.total(1).values)
    assert torch.equal(*totals)


def test_a_late_site_subtracts_nothing_and_a_single_contributor_has_nothing_to_learn():
    late = after(["site-2", "site-3"]).total(1)
    torch.testing.assert_close(
        late.mean_of_others("site-1", {1: D["site-1"]}), torch.tensor([[0.55, 0.45]], dtype=torch.float64)
    )
    alone = after(["site-1"]).total(1)
    assert alone.mean_of_others("site-1", {1: D["site-1"]}) is None
    assert exchange().total(1) is None


def test_soft_labels_of_an_absent_site_count_up_to_the_maximum_age():
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
        (torch.tensor([[float("nan"), 1.0]]), "soft labels of site-1: row 0 has an entry that is not finite"),
        (torch.tensor([[-0.1, 1.1]]), "soft labels of site-1: row 0 has a negative entry"),
        (torch.tensor([[0.5, 0.502]]), "soft labels of site-1: row 0 does not sum to 1"),
        (
            torch.tensor([[0.5, 0.3, 0.2]]),
            "soft labels of site-1: expected 2 classes, got 3; all models need the same classes",
        ),
        (torch.tensor([[0.5, 0.5]] * 2), r"soft labels of site-1: expected shape \(1, 2\), got \(2, 2\)"),
        (torch.tensor([[1, 0]]), r"soft labels of site-1: expected one of fp64, fp32, fp16, uint8, got torch\.int64"),
    ],
)
def test_refused_soft_labels_are_named_and_leave_no_trace(rows, message):
    server = after(["site-2"])
    with pytest.raises(MessageError, match=message):
        send(server, "site-1", rows=rows)
    assert list(server.total(1).rounds) == ["site-2"]


def send_losses(server, number, losses, changes=(0, 0, 0)):
    for site, loss, change in zip(D, losses, changes, strict=True):
        send(server, site, number, loss=loss, change=change)
    return server.total(number)


def test_confidence_counts_from_the_second_exchange_on():
    server = exchange(weighting="ccr")
    first = send_losses(server, 1, (1, 1, 1))
    assert list(first.weights.values()) == [0.5] * 3
    assert first.loss_scale("site-1") == 1
    second = send_losses(server, 2, (0.5, 0.8, 1))
    assert list(second.weights.values()) == pytest.approx([0.41474187, 0.30724834, 0.27800979], abs=1e-8)
    expected = sum(weight * D[site] for site, weight in second.weights.items())
    torch.testing.assert_close(second.values, expected)
    assert second.loss_scale("site-1") == pytest.approx(0.30724834 + 0.27800979, abs=1e-8)


def test_enhanced_confidence_uses_the_changes_and_its_own_strength():
    server = exchange(weighting="eccr")
    send_losses(server, 1, (1, 1, 1))
    weights = send_losses(server, 2, (0.5, 0.8, 1), (1, 0, 0)).weights
    assert list(weights.values()) == pytest.approx([1.3 / 2.7, 0.9 / 2.7, 0.5 / 2.7])


def test_confidence_with_a_newcomer_or_alone_is_equal():
    server = exchange(weighting="ccr")
    for site in ("site-1", "site-2"):
        send(server, site, 1, loss=1.0)
    assert list(send_losses(server, 2, (0.5, 0.8, 1)).weights.values()) == [0.5] * 3
    send(server, "site-1", 3, loss=0.4)
    assert server.total(3).weights == {"site-1": 1.0}


def test_confidence_is_reported_once_in_an_epoch_and_holds_for_all_its_exchanges():
    server = SoftLabelExchange(2, ExchangeOptions(weighting="ccr"), per_epoch=2)
    send_losses(server, 1, (1, 1, 1))
    # What is reported within an epoch does not count, and need not be reported.
    assert list(send_losses(server, 2, (0.1, 0.1, 0.9)).weights.values()) == [0.5] * 3
    weights = send_losses(server, 3, (0.5, 0.8, 1)).weights
    assert list(weights.values()) == pytest.approx([0.41474187, 0.30724834, 0.27800979], abs=1e-8)
    for site in D:
        send(server, site, 4)
    assert server.total(4).weights == weights
    with pytest.raises(MessageError, match="client confidence needs a loss"):
        send(server, "site-1", 5)


def test_a_site_that_joins_within_an_epoch_makes_all_weights_equal():
    server = SoftLabelExchange(2, ExchangeOptions(weighting="ccr"), per_epoch=2)
    for number, loss in ((1, 1.0), (3, 0.5)):
        send(server, "site-1", number, loss=loss)
        send(server, "site-2", number, loss=1.0)
    for site in D:
        send(server, site, 4)
    assert list(server.total(4).weights.values()) == [0.5] * 3


@pytest.mark.parametrize("loss", [None, 0.0, -1.0, float("nan"), float("inf")])
def test_confidence_needs_a_loss(loss):
    server = exchange(weighting="ccr")
    with pytest.raises(MessageError, match="soft labels of site-1: client confidence needs"):
        send(server, "site-1", loss=loss)
    with pytest.raises(MessageError, match="the change of the model must be at least 0 and finite, got -1"):
        send(server, "site-1", loss=1.0, change=-1)
    assert server.total(1) is None


def test_fedmds_consensus_is_the_mean_of_the_logits_with_the_own():
    server = exchange(content="logits")
    for site, logits in zip(D, ((2.0, -1.0), (0.0, 5.0), (-8.0, 2.0)), strict=True):
        send(server, site, rows=torch.tensor([logits]))
    torch.testing.assert_close(server.total(1).mean(), torch.tensor([[-2.0, 2.0]]))
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
    assert torch.equal(straight.values, resumed.values)
    assert straight.rounds == resumed.rounds == {"site-1": 2, "site-2": 1, "site-3": 2}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (ExchangeOptions, {"content": "logits", "wire": "uint8"}, "uint8 holds probabilities only"),
        (ExchangeOptions, {"content": "logits", "weighting": "ccr"}, "weighting ccr is for probabilities"),
        (ExchangeOptions, {"max_age": 1, "chunk": 16}, "max_age 1 needs exchanges about the same images"),
    ],
)
def test_invalid_options_are_refused(kind, options, message):
    with pytest.raises(ConfigurationError, match=message):
        kind(**options)


def test_equal_weights_of_the_others_sum_to_one():
    assert equal_weights(4) == [pytest.approx(1 / 3)] * 4


def test_confidence_matches_hand_computed_weights():
    # q = (1, .25, 0): shares .8, .2, 0 of the gain; softmax of (.9, .6, .5).
    weights = ccr_weights([1, 1, 1], [0.5, 0.8, 1])
    assert weights == pytest.approx([0.41474187, 0.30724834, 0.27800979], abs=1e-8)


def test_when_losses_rise_confidence_rewards_the_worst_and_the_enhanced_one_does_not():
    now = [1.25, 1.0, 1.05]
    weights = ccr_weights([1, 1, 1], now)
    assert weights == pytest.approx([0.4161658, 0.2778934, 0.3059408], abs=1e-7)
    assert max(weights) == weights[0]
    enhanced = eccr_weights([1, 1, 1], now, [0, 0, 0])
    assert min(enhanced) == enhanced[0]
    assert max(enhanced) == enhanced[1]


def test_enhanced_confidence_matches_hand_computed_weights():
    # q = (1/2, .25/1, 0/1): shares 2/3, 1/3, 0; (.5 + .8, .5 + .4, .5) of 2.7.
    weights = eccr_weights([1, 1, 1], [0.5, 0.8, 1], [1, 0, 0])
    assert weights == pytest.approx([1.3 / 2.7, 0.9 / 2.7, 0.5 / 2.7])


def test_moving_far_for_the_same_gain_costs_confidence():
    near, far, _ = eccr_weights([1, 1, 1], [0.5, 0.5, 1], [0, 3, 0])
    assert near > far


def test_a_negative_weight_becomes_zero():
    # q = (-.5, 0, 0, 0): the first has the share -1 and 1/3 - 1.2 < 0, the others 1/3.
    weights = eccr_weights([1, 1, 1, 1], [2, 1, 1, 1], [0, 0, 0, 0])
    assert weights == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])
    assert eccr_weights([1] * 2, [2, 2], [0, 0], strength=4) == [0.5, 0.5]


@pytest.mark.parametrize("losses", [[1, 1, 1, 1], [0.5, 2, 3, 0.1]])
def test_where_nothing_changed_all_weigh_the_same(losses):
    assert ccr_weights(losses, losses) == [0.25] * 4
    assert eccr_weights(losses, losses, [1, 2, 3, 4]) == [0.25] * 4


def test_the_same_gain_everywhere_weighs_the_same():
    assert ccr_weights([2] * 4, [1] * 4) == pytest.approx([0.25] * 4)
    assert eccr_weights([2] * 4, [1] * 4, [1] * 4) == pytest.approx([0.25] * 4)
