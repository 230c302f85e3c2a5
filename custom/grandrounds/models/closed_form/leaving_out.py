"""The penalty of ridge regression, chosen by the errors at hospitals that were left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from grandrounds.models.closed_form.solve import solve_grid, squared_error
from grandrounds.models.closed_form.sums import Sums

MOST_LEFT_OUT = 10
"""Groups of sites that are left out in turn; each costs a solution for each penalty."""


class LeftOut(NamedTuple):
    """The error of a penalty at hospitals that were left out, and the heads of all others in their order."""

    error: float
    heads: tuple[Tensor, ...]


def leaving_out(sites: Sequence[Sums], grid: Sequence[float]) -> list[LeftOut]:
    """For each penalty each site's error by the head of all others, added up, and these heads.

    Weights of classes stay as they are. Of more than ``MOST_LEFT_OUT`` sites as many groups are left out in turn.

    Args:
        sites: the sums of each; at least two with images.
        grid: of penalties.
    """
    groups = [
        sum(sites[first + MOST_LEFT_OUT :: MOST_LEFT_OUT], start=site)
        for first, site in enumerate(sites[:MOST_LEFT_OUT])
    ]
    total = sum(groups[1:], start=groups[0])
    left = [LeftOut(0.0, ())] * len(grid)
    for group in groups:
        others = total - group
        if group.weight > 0 and others.weight > 0:
            for number, head in enumerate(solve_grid(others, grid)):
                error, heads = left[number]
                left[number] = LeftOut(error + squared_error(head, group), (*heads, head))
    return left


def best_penalty(sites: Sequence[Sums], grid: Sequence[float]) -> tuple[float, dict[float, LeftOut]]:
    """The penalty with the smallest error at hospitals that were left out, and what was computed for this.

    The errors fall and then rise with the penalty, so the search goes from the middle of the grid downhill. With one site or
    one penalty nothing is, and the middle one of the grid is taken.
    """
    labelled, middle = [site for site in sites if site.weight > 0], len(grid) // 2
    if len(labelled) < 2 or len(grid) < 2:
        return grid[middle], {}
    ordered = sorted(grid)
    pair = ordered[middle - 1 : middle + 1]
    left = dict(zip(pair, leaving_out(labelled, pair), strict=True))
    onwards = ordered[middle + 1 :] if left[pair[1]].error < left[pair[0]].error else ordered[: middle - 1][::-1]
    for penalty in onwards:
        least = min(found.error for found in left.values())
        (left[penalty],) = leaving_out(labelled, [penalty])
        if left[penalty].error > least:
            break
    return min(sorted(left), key=lambda penalty: left[penalty].error), left
