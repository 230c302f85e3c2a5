"""Whose soft labels are in a sum, and from which round.

The server adds up the rows of those that answered. A site that did not answer in time may be represented by older rows of
its own, up to an age. Every site then takes its own rows out of the sum, if they are in it: so the sum comes with the list
of its contributors and the rounds that their rows are from.

The mean of the others' soft labels, from nothing but a sum and the own rows.

That is enough for MDH-FL's alignment (arXiv 2308.00155, Eq. 3), and for RHFL's with client confidence. So a server, or an
encryption scheme that can only add, has to make one sum for all sites, and no site sees the rows of another.
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


def leave_one_out_mean(row_sum: RowSum, site: str, own: Mapping[int, Tensor]) -> Tensor | None:
    r"""Mean of the others' rows, which is what a site aligns its model to.

    .. math:: m_{-p} = \frac{S - w_p D_p}{\sum_{j \ne p} w_j}

    A site that is no contributor takes nothing out: :math:`m = S / \sum_j w_j`.

    Args:
        row_sum: the sum; decrypted, if it was encrypted.
        site: whose target this is.
        own: the site's rows as decoded, by the round in which it sent them.

    Returns:
        Probabilities, shape ``(images, classes)``: what rounding or decryption has left below zero is zero, and rows sum to
        one. None if there is no other contributor (with a weight): then the site has nothing to align to.

    Raises:
        ValueError: if rows of the site are in the sum which ``own`` lacks, or which have another shape.
    """
    mass = alignment_scale(row_sum.weights, site)
    if mass <= 0:
        return None
    rest = _without_own(row_sum, site, own).clamp(min=0)
    return rest / rest.sum(dim=1, keepdim=True)


def mean_of_all(row_sum: RowSum) -> Tensor:
    r"""Mean of all rows, the own included, :math:`\sum_j w_j D_j / \sum_j w_j` (FedMD's consensus).

    Raises:
        ValueError: if all weights are zero.
    """
    mass = sum(row_sum.weights.values())
    if mass <= 0:
        raise ValueError("the weights of all contributors are zero")
    return row_sum.total / mass


def alignment_scale(weights: Mapping[str, float], site: str) -> float:
    r"""Sum of the others' weights, :math:`\sum_{j \ne p} w_j`.

    RHFL's alignment :math:`\sum_{j \ne p} w_j \mathrm{KL}(D_j \Vert D_p)` has the gradient of this scale times the
    divergence from :func:`leave_one_out_mean`. MDH-FL's weights are :math:`1/(P-1)`, which makes it one.

    Example:
        >>> round(alignment_scale({"a": 0.5, "b": 0.3, "c": 0.2}, "a"), 6)
        0.5
    """
    return sum(weight for other, weight in weights.items() if other != site)


def loss_scale(row_sum: RowSum, site: str) -> float:
    """What the divergence from :func:`leave_one_out_mean` is multiplied by.

    Returns:
        One for a plain sum, whose weights are all one: MDH-FL's mean over the others. Else :func:`alignment_scale`.
    """
    plain = all(weight == 1 for weight in row_sum.weights.values())
    return 1.0 if plain else alignment_scale(row_sum.weights, site)


def _without_own(row_sum: RowSum, site: str, own: Mapping[int, Tensor]) -> Tensor:
    if site not in row_sum.rounds:
        return row_sum.total
    needed = row_sum.rounds[site]
    if needed not in own:
        raise ValueError(
            f"the sum holds rows of {site} from round {needed}, which cannot be taken out: "
            f"it has those of rounds {sorted(own)}"
        )
    rows = own[needed]
    if rows.shape != row_sum.total.shape:
        raise ValueError(f"rows of {site} have shape {tuple(rows.shape)}, the sum {tuple(row_sum.total.shape)}")
    return row_sum.total - row_sum.weights[site] * rows
