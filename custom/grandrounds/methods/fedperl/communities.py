"""Communities of sites: their order, how often sites choose peers of their own, and how similar their models are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from grandrounds.ordering import natural_sorted


def community_order(groups: Mapping[str, str]) -> list[str]:
    """Sites in natural order, with the members of a community side by side; ``groups`` is the community of each site."""
    sites = natural_sorted(groups)
    communities = list(dict.fromkeys(groups[site] for site in sites))
    return sorted(sites, key=lambda site: communities.index(groups[site]))


def community_blocks(sites: Sequence[str], groups: Mapping[str, str]) -> list[tuple[str, int, int]]:
    """Runs of neighbouring sites of one community: its name, the first row and the number of rows.

    Example:
        >>> community_blocks(["a", "b", "c"], {"a": "scanner", "b": "scanner", "c": "camera"})
        [('scanner', 0, 2), ('camera', 2, 1)]
    """
    communities = [groups[site] for site in sites]
    starts = [row for row, name in enumerate(communities) if row == 0 or name != communities[row - 1]]
    ends = [*starts[1:], len(sites)]
    return [(communities[start], start, end - start) for start, end in zip(starts, ends, strict=True)]


def mean_similarity(
    matrix: NDArray[np.float64], sites: Sequence[str], groups: Mapping[str, str]
) -> tuple[float, float]:
    r"""Mean similarity of two sites of one community, and of two sites of different ones; NaN without such a pair.

    .. math:: \bar W_{in} = \operatorname{mean}\{W_{mn} : m \ne n, g_m = g_n\}, \qquad
        \bar W_{out} = \operatorname{mean}\{W_{mn} : g_m \ne g_n\}

    of the matrix :math:`W`, shape ``(sites, sites)``, with the sites in the order of the rows in communities :math:`g`.
    """
    community = np.array([groups[site] for site in sites])
    same = community[:, None] == community[None, :]
    pairs = matrix[same & ~np.eye(len(sites), dtype=bool)], matrix[~same]
    within, between = (float(values.mean()) if len(values) else math.nan for values in pairs)
    return within, between


def chance_within_group(groups: Mapping[str, str]) -> dict[str, float]:
    """The share of other sites in a site's group: what random selection of peers gives; NaN for a single site."""
    others = len(groups) - 1
    members = list(groups.values())
    return {site: (members.count(group) - 1) / others if others else math.nan for site, group in groups.items()}


def within_group_share(picks: Iterable[tuple[str, str]], groups: Mapping[str, str]) -> dict[str, float]:
    """The share of each site's peers that are in its own group; NaN for a site without picks.

    Args:
        picks: pairs of (target, peer), one for each peer sent.
        groups: the group (for example the imaging device) of each site.
    """
    made = list(picks)
    total = Counter(target for target, _ in made)
    own = Counter(target for target, peer in made if groups[target] == groups[peer])
    return {site: own[site] / total[site] if total[site] else math.nan for site in groups}


def pick_matrix(picks: Iterable[tuple[str, str]], sites: Sequence[str]) -> NDArray[np.float64]:
    """How often each site (row) had each other site (column) as a peer, as shares of the row; zero without picks."""
    position = {site: row for row, site in enumerate(sites)}
    counts = np.zeros((len(sites), len(sites)))
    for target, peer in picks:
        counts[position[target], position[peer]] += 1
    totals = counts.sum(axis=1, keepdims=True)
    return np.where(totals > 0, counts / np.maximum(totals, 1), 0.0)
