"""Whose soft labels are in a sum, and from which round.

The server adds up the rows of those that answered. A site that did not answer in time may be represented by older rows of
its own, up to an age. Every site then takes its own rows out of the sum, if they are in it: so the sum comes with the list
of its contributors and the rounds that their rows are from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from grandrounds.checks import require_at_least
from grandrounds.ordering import natural_sorted


@dataclass(frozen=True, eq=False)
class Contribution:
    """The latest rows of a site.

    Attributes:
        round: in which round the site sent them.
        rows: probabilities (FedMD: logits), shape ``(images, classes)``, as decoded.
    """

    round: int
    rows: Tensor


@dataclass(frozen=True, eq=False)
class RowSum:
    r"""All that a site needs to know of the others.

    Attributes:
        total: :math:`S = \sum_j w_j D_j`, shape ``(images, classes)``.
        rounds: the contributors, each with the round that its rows are from.
        weights: :math:`w_j` of every contributor; one each unless clients are weighted by confidence.
    """

    total: Tensor
    rounds: Mapping[str, int]
    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        if not self.rounds or set(self.rounds) != set(self.weights):
            raise ValueError(
                "a sum needs contributors, each with a round and a weight, "
                f"got rounds of {sorted(self.rounds)} and weights of {sorted(self.weights)}"
            )
        for site, weight in self.weights.items():
            require_at_least(weight, 0, f"weight of {site}")


def usable(latest: Mapping[str, Contribution], newest: int, max_age: int = 0) -> dict[str, Contribution]:
    """The contributions that are not too old, in the natural order of the sites.

    Args:
        latest: the latest contribution of each site.
        newest: the round that fresh contributions are from; later ones are refused.
        max_age: how many rounds older a contribution may be; 0 takes fresh ones only.

    Raises:
        ValueError: if ``max_age`` is negative, or a contribution is from a round to come.

    Example:
        >>> latest = {"site-2": Contribution(3, torch.ones(1, 1)), "site-1": Contribution(5, torch.ones(1, 1))}
        >>> list(usable(latest, newest=5)), list(usable(latest, newest=5, max_age=2))
        (['site-1'], ['site-1', 'site-2'])
    """
    require_at_least(max_age, 0, "max_age")
    for site, contribution in latest.items():
        if contribution.round > newest:
            raise ValueError(f"the rows of {site} are from round {contribution.round}, the newest is {newest}")
    return {site: latest[site] for site in natural_sorted(latest) if newest - latest[site].round <= max_age}


def sum_rows(contributions: Mapping[str, Contribution], weights: Mapping[str, float] | None = None) -> RowSum:
    r"""Add up rows, :math:`S = \sum_j w_j D_j`.

    The order of the sum is the natural order of the sites, so it is the same to the bit whoever came first.

    Args:
        contributions: of at least one site, all of one shape.
        weights: :math:`w_j` of each contributor, not negative; None is one each.

    Returns:
        The sum, in the dtype of the rows.

    Raises:
        ValueError: if there is no contribution, shapes differ, or weights are missing or negative.

    Example:
        >>> rows = {"a": torch.tensor([[0.5, 0.5]]), "b": torch.tensor([[0.9, 0.1]])}
        >>> sum_rows({site: Contribution(1, row) for site, row in rows.items()}).total
        tensor([[1.4000, 0.6000]])
    """
    sites = natural_sorted(contributions)
    chosen = dict.fromkeys(sites, 1.0) if weights is None else dict(weights)
    shapes = {tuple(contributions[site].rows.shape) for site in sites}
    if len(shapes) > 1:
        raise ValueError(f"rows must have one shape, got {', '.join(map(str, sorted(shapes)))}")
    if not sites or set(sites) != set(chosen):
        raise ValueError(f"expected weights of the contributors {sites}, got them of {sorted(chosen)}")
    total = torch.zeros_like(contributions[sites[0]].rows, dtype=torch.float64)
    for site in sites:
        total.add_(contributions[site].rows, alpha=chosen[site])
    rounds = {site: contributions[site].round for site in sites}
    return RowSum(total.to(contributions[sites[0]].rows.dtype), rounds, {site: chosen[site] for site in sites})
