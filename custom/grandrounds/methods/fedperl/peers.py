"""Who learns from whom: choosing peers, hiding them in an average, and telling whether they come from the own group.

Bdair et al. (FedPerl), MELBA 2022: peers are the most similar hospitals, sent as one average of their
parameters so that no single hospital's model is shown to another (peer anonymisation, Eq. 6).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.checks import require_at_least
from grandrounds.ordering import natural_key


def similar_peers(target: str, sites: Sequence[str], similarity: Tensor, top: int) -> list[str]:
    """Choose the sites whose models are most like the target's.

    Args:
        target: the site that asks.
        sites: the sites that have trained, in the order of the rows of ``similarity``.
        similarity: shape ``(sites, sites)``; greater is more alike.
        top: how many peers at most, zero or more.

    Returns:
        Up to ``top`` names, the most similar first, and of two equally similar the first in natural order. Never the
        target, never a site that has not trained; none for a target that has not trained.

    Raises:
        ValueError: if ``top`` is negative, a site is listed twice, or ``similarity`` does not fit the sites or has NaN.

    Example:
        >>> likeness = torch.tensor([[1.0, 0.2, 0.9], [0.2, 1.0, 0.4], [0.9, 0.4, 1.0]])
        >>> similar_peers("site-1", ["site-1", "site-3", "site-6"], likeness, top=2)
        ['site-6', 'site-3']
        >>> similar_peers("site-2", ["site-1", "site-3", "site-6"], likeness, top=2)
        []
    """
    require_at_least(top, 0, "top")
    if len(set(sites)) != len(sites):
        raise ValueError(f"each site may be listed once, got {list(sites)}")
    if similarity.shape != (len(sites), len(sites)):
        raise ValueError(f"similarity must have shape ({len(sites)}, {len(sites)}), got {tuple(similarity.shape)}")
    if target not in sites:
        return []
    likeness = dict(zip(sites, similarity[list(sites).index(target)].tolist(), strict=True))
    if any(math.isnan(value) for value in likeness.values()):
        raise ValueError(f"the similarities of {target} have NaN")
    candidates = sorted(set(sites) - {target}, key=lambda site: (-likeness[site], natural_key(site), site))
    return candidates[:top]


def in_warm_up(round_number: int, warm_up: int = 10) -> bool:
    """Tell whether it is too early for peers: models of the first rounds are alike, and bad.

    Args:
        round_number: counted from one.
        warm_up: how many rounds have no peers.

    Raises:
        ValueError: if the round is below one or ``warm_up`` below zero.

    Example:
        >>> in_warm_up(10), in_warm_up(11)
        (True, False)
    """
    require_at_least(round_number, 1, "round_number")
    require_at_least(warm_up, 0, "warm_up")
    return round_number <= warm_up


def anonymised_peer(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    r"""Average the peers' models into one that is nobody's.

    .. math:: \theta_a = \frac{1}{k} \sum_{t=1}^{k} \theta_t

    Every entry is averaged, the running means and variances of batch norm too; integer entries take the maximum. The
    average of parameters is another model than the average of predictions. One state alone hides nobody.

    Args:
        states: the peers' states, with the same entries.

    Returns:
        Fresh tensors of the same names, shapes and dtypes; bit for bit the same in whatever order the states come, and
        for one state its copy.

    Raises:
        ValueError: if there is no state, or the states differ in an entry's name, shape or dtype.

    Example:
        >>> anonymised_peer([{"weight": torch.tensor([1.0, 2.0])}, {"weight": torch.tensor([3.0, 6.0])}])
        {'weight': tensor([2., 4.])}
    """
    if not states:
        raise ValueError("an anonymised peer needs at least one state, got none")
    for number, state in enumerate(states):
        _require_same_entries(states[0], state, number)
    return {name: _average([state[name].detach() for state in states]) for name in states[0]}


def chance_within_group(groups: Mapping[str, str]) -> dict[str, float]:
    """Share of the other sites that are in a site's own group: what picking peers at random would give.

    Args:
        groups: the group (for example the imaging device) of each site.

    Returns:
        For each site a share in [0, 1]; NaN for a site that has no others.

    Example:
        >>> chance_within_group({"a": "scanner", "b": "scanner", "c": "camera"})
        {'a': 0.5, 'b': 0.5, 'c': 0.0}
    """
    others = len(groups) - 1
    members = list(groups.values())
    return {site: (members.count(group) - 1) / others if others else math.nan for site, group in groups.items()}


def within_group_share(picks: Iterable[tuple[str, str]], groups: Mapping[str, str]) -> dict[str, float]:
    """Share of each site's picks that are in its own group.

    Args:
        picks: pairs of (target, peer), one for each time a peer was sent.
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
    """Count how often each site was given each other as a peer.

    Args:
        picks: pairs of (target, peer), one for each time a peer was sent.
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


def _known(picks: Iterable[tuple[str, str]], sites: Iterable[str]) -> list[tuple[str, str]]:
    made, names = list(picks), set(sites)
    for target, peer in made:
        if not {target, peer} <= names:
            raise ValueError(f"the pick of {peer} for {target} names a site that is not among {sorted(names)}")
    return made


def _require_same_entries(first: Mapping[str, Tensor], state: Mapping[str, Tensor], number: int) -> None:
    different = sorted(first.keys() ^ state.keys())
    if different:
        raise ValueError(f"state {number} and state 0 do not both have {different[0]}")
    for name, value in state.items():
        expected = first[name]
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise ValueError(
                f"{name} is {tuple(value.shape)} {value.dtype} in state {number}, "
                f"but {tuple(expected.shape)} {expected.dtype} in state 0"
            )


def _average(values: list[Tensor]) -> Tensor:
    if not values[0].is_floating_point():
        return torch.stack(values).amax(dim=0)
    # A floating-point sum depends on its order, even in double precision; the order of the contents is the same always.
    ordered = sorted(values, key=_content)
    total = functools.reduce(torch.add, (value.double() for value in ordered))
    return (total / len(values)).to(values[0].dtype)


def _content(value: Tensor) -> bytes:
    return value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
