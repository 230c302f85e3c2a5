"""The search for a penalty: the one that a whole grid gives, from fewer solutions, also where groups are left out."""

import pytest
import torch

from grandrounds.models.closed_form import leaving_out as module
from grandrounds.models.closed_form.leaving_out import MOST_LEFT_OUT, LeftOut, best_penalty, leaving_out
from grandrounds.models.closed_form.solve import DEFAULT_PENALTIES, solve
from grandrounds.models.closed_form.sums import BLOCK, Sums, sums_of, with_bias


def drawn(sites, noise, seed, width=12):
    """Sums of sites whose labels follow from features, with noise."""
    numbers = torch.Generator().manual_seed(seed)
    truth = torch.randn(width, 3, generator=numbers)
    parts = []
    for _ in range(sites):
        features = torch.randn(9, width, generator=numbers)
        labels = (features @ truth + noise * torch.randn(9, 3, generator=numbers)).argmax(dim=1)
        parts.append(sums_of([(features, torch.eye(3)[labels], torch.ones(9))], width, 3))
    return parts


@pytest.mark.parametrize("noise", [0.0, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_search_finds_what_the_whole_grid_gives(noise, seed):
    sites = drawn(4, noise, seed)
    whole = [left.error for left in leaving_out(sites, DEFAULT_PENALTIES)]
    chosen, found = best_penalty(sites, DEFAULT_PENALTIES)
    assert chosen == DEFAULT_PENALTIES[whole.index(min(whole))]
    assert all(left.error == whole[DEFAULT_PENALTIES.index(nu)] for nu, left in found.items())
    assert torch.equal(found[chosen].heads[1], solve(sites[0] + sites[1] + sites[2] + sites[3] - sites[1], chosen))
    assert best_penalty(sites, DEFAULT_PENALTIES[::-1])[0] == chosen


def test_a_least_error_in_the_middle_costs_half_the_solutions(monkeypatch):
    asked = []
    monkeypatch.setattr(
        module, "leaving_out", lambda _, grid: asked.extend(grid) or [LeftOut((nu - 1.1) ** 2, ()) for nu in grid]
    )
    assert best_penalty(drawn(2, 0.0, 0), DEFAULT_PENALTIES)[0] == 1.0
    assert asked == [0.3, 1.0, 3.0]


def test_of_many_sites_groups_are_left_out():
    sites = drawn(MOST_LEFT_OUT + 3, 1.0, 0)
    groups = [sites[n] + sites[n + MOST_LEFT_OUT] if n < 3 else sites[n] for n in range(MOST_LEFT_OUT)]
    assert leaving_out(sites, [1.0])[0].error == pytest.approx(leaving_out(groups, [1.0])[0].error, rel=1e-12)


def test_products_in_blocks_are_those_of_all_columns():
    numbers = torch.Generator().manual_seed(1)
    width = 2 * BLOCK + 5
    features, weights = torch.randn(7, width, generator=numbers), torch.rand(7, generator=numbers)
    found = sums_of([(features, torch.eye(7)[:, :2], weights)], width, 2)
    rows = with_bias(features.double())
    torch.testing.assert_close(found.products, rows.T @ (weights.double()[:, None] * rows), rtol=1e-12, atol=1e-12)
    assert torch.equal(found.products, found.products.T)
    assert torch.equal(Sums.unpacked(found.packed()).products, found.products)
