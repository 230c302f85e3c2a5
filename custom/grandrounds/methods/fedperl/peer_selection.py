"""Which peers a site learns from, and how they are anonymised (Bdair et al., FedPerl, MELBA 2022).

Peers are the hospitals with the most similar models; a policy may reject some of them (Eq. 10 to 12). They are sent as one
average of their parameters, so that no hospital's model is shown to another (peer anonymisation, Eq. 6).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from grandrounds.ordering import natural_key, natural_sorted

PeerChoice = Literal["similar", "random", "fedmatch", "fedmatch_released"]
Policy = Literal["none", "validation", "gated_validation", "gated_similarity"]
GateScale = Literal["absolute", "relative"]

VALIDATED: tuple[Policy, ...] = ("validation", "gated_validation")
"""The policies that need every model's accuracy on the server's validation images."""
BYTE = 255.0
NOISE: Mapping[PeerChoice, tuple[float, float]] = {"fedmatch": (125.0, 125.0), "fedmatch_released": (0.0, 1.0)}
"""Mean and standard deviation of the noise in grey levels, before truncation to 0..255."""


def similar_peers(target: str, sites: Sequence[str], similarity: Tensor, top: int) -> list[str]:
    """Choose the sites whose models are most similar to the target's.

    Args:
        target: the site that gets the peers.
        sites: the sites that have trained, in the order of the rows of ``similarity``.
        similarity: shape ``(sites, sites)``.
        top: the maximum number of peers.

    Returns:
        Up to ``top`` names, most similar first, ties in natural order; none for a target that has not trained.

    Example:
        >>> likeness = torch.tensor([[1.0, 0.2, 0.9], [0.2, 1.0, 0.4], [0.9, 0.4, 1.0]])
        >>> similar_peers("site-1", ["site-1", "site-3", "site-6"], likeness, top=2)
        ['site-6', 'site-3']
        >>> similar_peers("site-2", ["site-1", "site-3", "site-6"], likeness, top=2)
        []
    """
    if target not in sites:
        return []
    likeness = dict(zip(sites, similarity[list(sites).index(target)].tolist(), strict=True))
    candidates = sorted(set(sites) - {target}, key=lambda site: (-likeness[site], natural_key(site), site))
    return candidates[:top]


def random_peers(target: str, sites: Sequence[str], top: int, generator: np.random.Generator) -> list[str]:
    """Draw peers uniformly without replacement from the sites that have trained.

    Returns:
        Up to ``top`` names other than ``target``, in the order drawn; none if ``target`` is not among ``sites``.
    """
    others = natural_sorted(set(sites) - {target})
    if target not in sites:
        return []
    return [str(name) for name in generator.permutation(np.array(others, dtype=object))[:top]]


def nearest_peers(target: str, embeddings: Mapping[str, Tensor], top: int) -> list[str]:
    """Choose the sites whose embeddings are nearest to the target's in Euclidean distance.

    Args:
        target: the site that gets the peers.
        embeddings: of each site that has trained, shape ``(features,)``.
        top: the maximum number of peers.

    Returns:
        Up to ``top`` names, nearest first, ties in natural order; none for a target without an embedding.

    Example:
        >>> points = {"a": torch.tensor([0.0]), "b": torch.tensor([3.0]), "c": torch.tensor([1.0])}
        >>> nearest_peers("a", points, top=1)
        ['c']
    """
    if target not in embeddings:
        return []
    own = embeddings[target].double()
    distance = {site: float((values.double() - own).norm()) for site, values in embeddings.items() if site != target}
    return sorted(distance, key=lambda site: (distance[site], natural_key(site), site))[:top]


def noise_image(choice: PeerChoice, channels: int, side: int, generator: np.random.Generator) -> Tensor:
    """Draw an image of Gaussian noise, truncated to the range of a byte.

    Args:
        choice: ``fedmatch`` has mean 125 and standard deviation 125, ``fedmatch_released`` 0 and 1 (nearly black).
        channels: of the image.
        side: height and width in pixels.
        generator: of the noise.

    Returns:
        Shape ``(1, channels, side, side)``, float32 in [0, 1].
    """
    from scipy.stats import truncnorm  # imported here because only a server with FedMatch peers needs it

    mean, deviation = NOISE[choice]
    low, high = -mean / deviation, (BYTE - mean) / deviation
    values = truncnorm.rvs(low, high, loc=mean, scale=deviation, size=(1, channels, side, side), random_state=generator)
    return torch.from_numpy(values / BYTE).float()


def passing_peers(
    peers: Sequence[str],
    policy: Policy,
    *,
    gate: float = 0.0,
    scale: GateScale = "absolute",
    target: str = "",
    accuracy: Mapping[str, float] = MappingProxyType({}),
    similarity: Mapping[str, float] = MappingProxyType({}),
) -> list[str]:
    r"""Keep the peers that pass a policy.

    .. math:: \Omega_v = \{n : V(n) \ge V(m)\}, \quad \Omega_{gv} = \{n : V(n) \ge \rho\},
              \quad \Omega_{gs} = \{n : W_{mn} \ge \rho\}

    A relative gate is :math:`\rho \max_k V(k)` over all models, or :math:`\rho \max_k W_{mk}` over the other sites. On hard
    data no model reaches an accuracy of 0.85: an absolute gate of that height rejects every peer.

    Args:
        peers: the selected peers :math:`S_T`.
        policy: ``none`` keeps all.
        gate: :math:`\rho`, in [0, 1].
        scale: ``absolute`` or ``relative``.
        target: the site that gets the peers, :math:`m`.
        accuracy: :math:`V`, of each site's last model on the server's validation images; for validation policies.
        similarity: :math:`W_{mk}` of the target with each other site; for ``gated_similarity``.

    Returns:
        The peers that pass, in their order; may be empty.

    Example:
        >>> accuracy = {"a": 0.7, "b": 0.7, "c": 0.69}
        >>> passing_peers(["b", "c"], "validation", target="a", accuracy=accuracy)
        ['b']
        >>> passing_peers(["b", "c"], "gated_validation", gate=0.75, accuracy=accuracy)
        []
        >>> passing_peers(["b", "c"], "gated_validation", gate=0.75, scale="relative", accuracy=accuracy)
        ['b', 'c']
    """
    if policy == "none":
        return list(peers)
    values = similarity if policy == "gated_similarity" else accuracy
    if policy == "validation":
        minimum = values[target]
    else:
        minimum = gate * max(values.values(), default=0.0) if scale == "relative" else gate
    return [peer for peer in peers if values[peer] >= minimum]


def anonymised_peer(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    r"""Average the peers' models (Eq. 6).

    .. math:: \theta_a = \frac{1}{k} \sum_{t=1}^{k} \theta_t

    Running means and variances of batch norm are averaged, too; integer entries take the maximum.

    Args:
        states: the peers' states, at least one, with the same entries. The average of one state is a copy of it and
            anonymises no site.

    Returns:
        New tensors of the same names, shapes and dtypes; they do not depend on the order of the states.

    Example:
        >>> anonymised_peer([{"weight": torch.tensor([1.0, 2.0])}, {"weight": torch.tensor([3.0, 6.0])}])
        {'weight': tensor([2., 4.])}
    """
    return {name: _average([state[name].detach() for state in states]) for name in states[0]}


def _average(values: list[Tensor]) -> Tensor:
    if not values[0].is_floating_point():
        return torch.stack(values).amax(dim=0)
    # A floating-point sum depends on its order, even in double precision; sorting by content fixes it.
    ordered = sorted(values, key=_content)
    total = functools.reduce(torch.add, (value.double() for value in ordered))
    return (total / len(values)).to(values[0].dtype)


def _content(value: Tensor) -> bytes:
    return value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
