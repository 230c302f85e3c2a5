"""Alignment with the mean of the others is alignment with each of them; the sum and the own soft labels are enough."""

import pytest
import torch
from torch.nn import functional as F

from grandrounds.methods.mutual.soft_labels import SoftLabels, add_up, recent
from grandrounds.methods.mutual.training import alignment_loss, digest_loss
from grandrounds.seeding import torch_generator

D1, D2, D3 = (torch.tensor([row], dtype=torch.float64) for row in ((0.5, 0.5), (0.9, 0.1), (0.2, 0.8)))
ROWS = {"site-1": D1, "site-2": D2, "site-3": D3}


def others_of(site):
    return [rows for other, rows in ROWS.items() if other != site]


def kl(target, own):
    """Kullback-Leibler divergence, by torch's own function."""
    return F.kl_div(own.log(), target, reduction="batchmean")


def pairwise(site):
    return torch.stack([kl(other, ROWS[site]) for other in others_of(site)]).mean()


def sum_of(sites, rounds=1):
    return add_up({site: SoftLabels.of_site(site, rounds, ROWS[site]) for site in sites})


@pytest.mark.parametrize(("site", "expected"), [("site-1", 0.28040448), ("site-2", 0.93678169), ("site-3", 0.68443453)])
def test_the_loss_from_each_of_the_others_is_as_computed_by_hand(site, expected):
    each = [float(alignment_loss(ROWS[site].log(), other)) for other in others_of(site)]
    assert sum(each) / 2 == pytest.approx(expected, abs=1e-8)
    assert sum(each) / 2 == pytest.approx(float(pairwise(site)), abs=1e-12)


def test_it_is_not_the_divergence_in_the_other_direction_nor_the_mean_over_classes():
    towards = [float(alignment_loss(D1.log(), other)) for other in (D2, D3)]
    assert towards == pytest.approx([0.36806421, 0.19274476], abs=1e-8)
    reversed_direction = [float(alignment_loss(other.log(), D1)) for other in (D2, D3)]
    assert sum(reversed_direction) / 2 == pytest.approx(0.36698459, abs=1e-8)
    over_classes = [float(F.kl_div(D1.log(), other, reduction="none").mean()) for other in (D2, D3)]
    assert sum(over_classes) / 2 == pytest.approx(0.14020224, abs=1e-8)
    assert sum(towards) / 2 == pytest.approx(0.28040448, abs=1e-8)


@pytest.mark.parametrize(
    ("site", "mean", "divergence"),
    [
        ("site-1", (0.55, 0.45), 0.00500837),
        ("site-2", (0.35, 0.65), 0.88610985),
        ("site-3", (0.7, 0.3), 0.58268530),
    ],
)
def test_the_mean_of_the_others_comes_from_the_sum_and_the_own_soft_labels(site, mean, divergence):
    total = sum_of(ROWS)
    torch.testing.assert_close(total.values, torch.tensor([[1.6, 1.4]], dtype=torch.float64))
    target = total.mean_of_others(site, {1: ROWS[site]})
    torch.testing.assert_close(target, torch.tensor([mean], dtype=torch.float64))
    assert float(alignment_loss(ROWS[site].log(), target)) == pytest.approx(divergence, abs=1e-8)


def test_what_the_mean_lacks_is_a_constant_of_the_others():
    mean = torch.tensor([[0.55, 0.45]], dtype=torch.float64)
    constant = (kl(D2, mean) + kl(D3, mean)) / 2
    assert float(constant) == pytest.approx(0.27539612, abs=1e-8)
    assert float(alignment_loss(D1.log(), mean) + constant) == pytest.approx(0.28040448, abs=1e-8)


def test_the_gradient_is_the_difference_of_own_and_mean():
    logits = D1.log().requires_grad_()
    alignment_loss(logits, torch.tensor([[0.55, 0.45]], dtype=torch.float64)).backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[-0.05, 0.05]], dtype=torch.float64))


def random_rows(*purpose, images=50, classes=13):
    logits = 2 * torch.randn(images, classes, generator=torch_generator(*purpose), dtype=torch.float64)
    return logits.softmax(dim=1)


@pytest.mark.parametrize("weights", [None, {"a": 0.3, "b": 0.25, "c": 0.15, "d": 0.3}])
def test_the_gradient_is_that_of_all_divergences_whatever_the_weights(weights):
    rows = {site: random_rows("rows", site) for site in "abcd"}
    total = add_up({site: SoftLabels.of_site(site, 1, own) for site, own in rows.items()}, weights)
    target = total.mean_of_others("b", {1: rows["b"]})
    ours, theirs = (rows["b"].log().requires_grad_() for _ in range(2))
    scale = 1.0 if weights is None else total.weight_of_others("b")
    (scale * alignment_loss(ours, target)).backward()
    chosen = dict.fromkeys("abcd", 1 / 3) if weights is None else weights
    each = [
        chosen[site] * F.kl_div(theirs.log_softmax(dim=1), rows[site], reduction="batchmean")
        for site in ("a", "c", "d")
    ]
    torch.stack(each).sum().backward()
    assert float((ours.grad - theirs.grad).abs().max()) < 1e-15


def test_the_target_has_no_gradient():
    target = D2.clone().requires_grad_()
    logits = D1.log().requires_grad_()
    alignment_loss(logits, target).backward()
    assert target.grad is None


def test_a_site_that_came_too_late_subtracts_nothing_from_the_sum():
    target = sum_of(["site-2", "site-3"]).mean_of_others("site-1", {1: D1})
    torch.testing.assert_close(target, torch.tensor([[0.55, 0.45]], dtype=torch.float64))
    # (S - D1) / 1 = (.6, .4) would be the mistake.
    assert float((target - torch.tensor([[0.6, 0.4]])).abs().max()) > 0.04


def test_the_only_contributor_has_nothing_to_align_to_and_the_others_have():
    total = sum_of(["site-1"])
    assert total.mean_of_others("site-1", {1: D1}) is None
    torch.testing.assert_close(total.mean_of_others("site-2", {}), D1)


def test_contributors_without_weight_give_no_target():
    total = SoftLabels(D1, {"site-1": 1, "site-2": 1}, {"site-1": 1.0, "site-2": 0.0})
    assert total.mean_of_others("site-1", {1: D1}) is None
    with pytest.raises(ValueError, match="the weights of all contributors are zero"):
        SoftLabels(D1, {"site-1": 1}, {"site-1": 0.0}).mean()


def test_a_stale_contribution_is_subtracted_in_its_older_version():
    old, new = D1, D2
    latest = {"site-1": SoftLabels.of_site("site-1", 3, old), "site-3": SoftLabels.of_site("site-3", 5, D3)}
    total = add_up(recent(latest, newest=5, max_age=2))
    assert total.rounds == {"site-1": 3, "site-3": 5}
    torch.testing.assert_close(total.mean_of_others("site-1", {3: old, 5: new}), D3)
    with pytest.raises(
        ValueError,
        match=r"soft labels of site-1 from round 3",
    ):
        total.mean_of_others("site-1", {5: new})


def test_own_soft_labels_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"soft labels of site-1 have shape \(2, 2\), the sum \(1, 2\)"):
        sum_of(ROWS).mean_of_others("site-1", {1: D1.repeat(2, 1)})


def test_only_contributions_up_to_the_age_are_used_in_natural_order():
    latest = {f"site-{n}": SoftLabels.of_site(f"site-{n}", n, D1) for n in (10, 9, 8, 7)}
    assert list(recent(latest, newest=10)) == ["site-10"]
    assert list(recent(latest, newest=10, max_age=2)) == ["site-8", "site-9", "site-10"]


def test_the_sum_is_bit_identical_in_any_order_of_arrival():
    rows = {f"site-{n}": SoftLabels.of_site(f"site-{n}", 1, random_rows("order", n)) for n in range(1, 12)}
    backwards = dict(reversed(rows.items()))
    assert torch.equal(add_up(rows).values, add_up(backwards).values)
    assert sum_of(["site-1"]).values.dtype == torch.float64
    assert add_up({"site-1": SoftLabels.of_site("site-1", 1, D1.float())}).values.dtype == torch.float32


def test_large_scores_of_one_site_do_not_swallow_those_of_another():
    # In single precision 1e8 + 1 is 1e8. FedMD's scores have no bound.
    logits = (("a", 1e8), ("b", 1.0), ("c", -1e8))
    scores = {site: SoftLabels.of_site(site, 1, torch.tensor([[value]])) for site, value in logits}
    assert add_up(scores).values.item() == 1.0


def test_what_rounding_leaves_of_a_zero_is_zero_and_each_row_sums_to_one():
    # A class that no site predicts may come out below zero.
    first, second = (torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.25, 0.75, 0.0]]))
    noisy = SoftLabels(first + second + torch.tensor([[2e-7, -1e-7, -2e-7]]), {"a": 1, "b": 1}, {"a": 1.0, "b": 1.0})
    target = noisy.mean_of_others("a", {1: first})
    assert float(target.min()) == 0
    torch.testing.assert_close(target, second, atol=1e-6, rtol=0)
    torch.testing.assert_close(target.sum(dim=1), torch.ones(1), atol=1e-7, rtol=0)
    assert torch.isfinite(alignment_loss(torch.zeros(1, 3), target))


def test_sums_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"weight of a must be at least 0, got -1\.0"):
        add_up({"a": SoftLabels.of_site("a", 1, D1)}, {"a": -1.0})
    with pytest.raises(ValueError, match=r"each with a round and a weight, got rounds of \['a'\] and weights of \[\]"):
        SoftLabels(D1, {"a": 1}, {})


def test_fedmds_consensus_is_the_mean_of_all_and_the_digest_the_absolute_error():
    consensus = sum_of(ROWS).mean()
    torch.testing.assert_close(consensus, torch.tensor([[1.6 / 3, 1.4 / 3]], dtype=torch.float64))
    scores = torch.tensor([[1.0, -2.0], [0.0, 4.0]], requires_grad=True)
    loss = digest_loss(scores, torch.tensor([[2.0, -2.0], [0.5, 1.0]]))
    assert loss.item() == pytest.approx((1 + 0 + 0.5 + 3) / 4)
    loss.backward()
    torch.testing.assert_close(scores.grad, torch.tensor([[-0.25, 0.0], [-0.25, 0.25]]))


@pytest.mark.parametrize("loss", [alignment_loss, digest_loss])
def test_empty_batches_cost_nothing(loss):
    logits = torch.zeros(0, 3, requires_grad=True)
    value = loss(logits, torch.zeros(0, 3))
    value.backward()
    assert float(value) == 0
