"""Sites in communities: hospitals whose images come from the same source (FedPerl's word; Bdair et al., MELBA 2022).

FedPerl's claim is that hospitals find their community by the similarity of their models, without knowing it. To see
whether they do, figures put the members of a community side by side and compare within with between.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.ordering import natural_sorted


class Block(NamedTuple):
    """Neighbouring rows of one community.

    Attributes:
        name: of the community.
        first: its first row.
        size: how many rows.
    """

    name: str
    first: int
    size: int


def community_order(groups: Mapping[str, str]) -> list[str]:
    """Sites in natural order, with the members of a community side by side.

    Args:
        groups: the community of each site.

    Returns:
        Sites; communities come in the order of their first member.

    Example:
        >>> community_order({"site-10": "camera", "site-2": "scanner", "site-1": "camera"})
        ['site-1', 'site-10', 'site-2']
    """
    sites = natural_sorted(groups)
    communities = list(dict.fromkeys(groups[site] for site in sites))
    return sorted(sites, key=lambda site: communities.index(groups[site]))


def community_blocks(sites: Sequence[str], groups: Mapping[str, str]) -> list[Block]:
    """Runs of neighbouring sites that are in one community.

    Args:
        sites: in the order of the rows.
        groups: the community of each site.

    Example:
        >>> [tuple(block) for block in community_blocks(["a", "b", "c"], {"a": "scanner", "b": "scanner", "c": "camera"})]
        [('scanner', 0, 2), ('camera', 2, 1)]
    """
    blocks: list[Block] = []
    for row, site in enumerate(sites):
        if blocks and blocks[-1].name == groups[site]:
            blocks[-1] = blocks[-1]._replace(size=blocks[-1].size + 1)
        else:
            blocks.append(Block(groups[site], row, 1))
    return blocks


def mean_similarity(
    matrix: NDArray[np.float64], sites: Sequence[str], groups: Mapping[str, str]
) -> tuple[float, float]:
    r"""Mean similarity of two sites of one community, and of two sites of different ones.

    .. math:: \bar W_{in} = \operatorname{mean}\{W_{mn} : m \ne n, g_m = g_n\}, \qquad
        \bar W_{out} = \operatorname{mean}\{W_{mn} : g_m \ne g_n\}

    Args:
        matrix: :math:`W`, shape ``(sites, sites)``.
        sites: in the order of the rows.
        groups: :math:`g`, the community of each site.

    Returns:
        Within and between; NaN where there is no such pair.

    Raises:
        ValueError: if the matrix does not fit the sites.

    Example:
        >>> likeness = np.array([[1.0, 0.8, 0.2], [0.8, 1.0, 0.4], [0.2, 0.4, 1.0]])
        >>> within, between = mean_similarity(likeness, ["a", "b", "c"], {"a": "x", "b": "x", "c": "y"})
        >>> round(within, 6), round(between, 6)
        (0.8, 0.3)
    """
    require_square(matrix, sites)
    community = np.array([groups[site] for site in sites])
    same = community[:, None] == community[None, :]
    others = ~np.eye(len(sites), dtype=bool)
    return _mean(matrix[same & others]), _mean(matrix[~same])


def chance_within_group(groups: Mapping[str, str]) -> dict[str, float]:
    """The expected share of within-group peers under random selection: the share of other sites in a site's group.

    Args:
        groups: the group (for example the imaging device) of each site.

    Returns:
        For each site a share in [0, 1]; NaN for a single site.

    Example:
        >>> chance_within_group({"a": "scanner", "b": "scanner", "c": "camera"})
        {'a': 0.5, 'b': 0.5, 'c': 0.0}
    """
    others = len(groups) - 1
    members = list(groups.values())
    return {site: (members.count(group) - 1) / others if others else math.nan for site, group in groups.items()}


def within_group_share(picks: Iterable[tuple[str, str]], groups: Mapping[str, str]) -> dict[str, float]:
    """Share of each site's selected peers that are in its own group.

    Args:
        picks: pairs of (target, peer), one for each peer sent.
        groups: the group of each site.

    Returns:
        For each site a share in [0, 1]; NaN for a site without picks.

    Raises:
        ValueError: if a pick names a site that has no group.

    Example:
        >>> groups = {"a": "scanner", "b": "scanner", "c": "camera"}
        >>> within_group_share([("a", "b"), ("a", "c"), ("c", "a")], groups)
        {'a': 0.5, 'b': nan, 'c': 0.0}
    """
    made = _known(picks, groups)
    total = Counter(target for target, _ in made)
    own = Counter(target for target, peer in made if groups[target] == groups[peer])
    return {site: own[site] / total[site] if total[site] else math.nan for site in groups}


def pick_matrix(picks: Iterable[tuple[str, str]], sites: Sequence[str]) -> NDArray[np.float64]:
    """How often each site had each other site as a peer.

    Args:
        picks: pairs of (target, peer), one for each peer sent.
        sites: the order of rows and columns.

    Returns:
        Shape ``(sites, sites)``: row ``target``, column ``peer``, as shares of the row; a row without picks is zero.

    Raises:
        ValueError: if a pick names a site that is not among ``sites``.

    Example:
        >>> pick_matrix([("a", "b"), ("a", "b"), ("a", "c"), ("a", "b")], ["a", "b", "c"])[0]
        array([0.  , 0.75, 0.25])
    """
    position = {site: row for row, site in enumerate(sites)}
    counts = np.zeros((len(sites), len(sites)))
    for target, peer in _known(picks, sites):
        counts[position[target], position[peer]] += 1
    totals = counts.sum(axis=1, keepdims=True)
    return np.where(totals > 0, counts / np.maximum(totals, 1), 0.0)


def require_square(matrix: NDArray[np.float64], sites: Sequence[str]) -> None:
    """Raise ``ValueError`` unless the matrix has a row and a column for each site."""
    if matrix.shape != (len(sites), len(sites)):
        raise ValueError(f"the matrix must have shape ({len(sites)}, {len(sites)}), got {matrix.shape}")


def _known(picks: Iterable[tuple[str, str]], sites: Iterable[str]) -> list[tuple[str, str]]:
    made, names = list(picks), set(sites)
    for target, peer in made:
        if not {target, peer} <= names:
            raise ValueError(f"the pick of {peer} for {target} names a site that is not among {sorted(names)}")
    return made


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else math.nan
