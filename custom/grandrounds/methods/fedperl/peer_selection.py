"""Other ways to choose peers than by similarity: at random, and FedMatch's, by what models say about one noise image.

FedMatch (Jeong et al., ICLR 2021) takes as helpers the models nearest to a site's own in what they predict for a fixed
image of noise. FedPerl's authors compare with a release of theirs that differs from FedMatch's own code: its noise image is
nearly black, it compares logits, and the first participant of each round is represented by the global model.

Dynamic policies: which of the most similar peers are worth learning from (Bdair et al., MELBA 2022, Eq. 10 to 12).

The paper's gates are absolute. On hard data no model reaches an accuracy of 0.85, so an absolute gate of that height
lets nobody pass and the site trains without peers; a relative gate is a share of the best value that there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from grandrounds.checks import require_at_least, require_fraction
from grandrounds.ordering import natural_key, natural_sorted

PeerChoice = Literal["similar", "random", "fedmatch", "fedmatch_released"]

BYTE = 255.0
NOISE: Mapping[PeerChoice, tuple[float, float]] = {"fedmatch": (125.0, 125.0), "fedmatch_released": (0.0, 1.0)}
"""Mean and deviation of the noise, in units of a byte, before it is cut to 0..255."""


def random_peers(target: str, sites: Sequence[str], top: int, generator: np.random.Generator) -> list[str]:
    """Draw peers at random without replacement from the sites that have trained.

    Args:
        target: the site that asks; it is not drawn, and gets nobody before it has trained itself.
        sites: the sites that have trained.
        top: how many peers at most.
        generator: where the randomness comes from.

    Returns:
        Up to ``top`` names in the order drawn.

    Raises:
        ValueError: if ``top`` is negative.
    """
    require_at_least(top, 0, "top")
    others = natural_sorted(set(sites) - {target})
    if target not in sites:
        return []
    return [str(name) for name in generator.permutation(np.array(others, dtype=object))[:top]]


def nearest_peers(target: str, embeddings: Mapping[str, Tensor], top: int) -> list[str]:
    r"""Choose the sites whose embeddings are nearest to the target's in Euclidean distance.

    Args:
        target: the site that asks.
        embeddings: of each site that has trained, shape ``(features,)``.
        top: how many peers at most.

    Returns:
        Up to ``top`` names, the nearest first, equal distances in natural order; none for a target without embedding.

    Raises:
        ValueError: if ``top`` is negative.

    Example:
        >>> points = {"a": torch.tensor([0.0]), "b": torch.tensor([3.0]), "c": torch.tensor([1.0])}
        >>> nearest_peers("a", points, top=1)
        ['c']
    """
    require_at_least(top, 0, "top")
    if target not in embeddings:
        return []
    own = embeddings[target].double()
    distance = {site: float((values.double() - own).norm()) for site, values in embeddings.items() if site != target}
    return sorted(distance, key=lambda site: (distance[site], natural_key(site), site))[:top]


def noise_image(choice: PeerChoice, channels: int, side: int, generator: np.random.Generator) -> Tensor:
    """One image of noise from a normal distribution truncated to the range of a byte.

    Args:
        choice: ``fedmatch`` has mean 125 and deviation 125, ``fedmatch_released`` 0 and 1: nearly black.
        channels: of the image.
        side: height and width in pixels.
        generator: where the randomness comes from.

    Returns:
        Shape ``(1, channels, side, side)``, float32 in [0, 1].
    """
    from scipy.stats import truncnorm  # sites, which draw no noise, do not wait for it

    mean, deviation = NOISE[choice]
    low, high = -mean / deviation, (BYTE - mean) / deviation
    values = truncnorm.rvs(low, high, loc=mean, scale=deviation, size=(1, channels, side, side), random_state=generator)
    return torch.from_numpy(values / BYTE).float()


Policy = Literal["none", "validation", "gated_validation", "gated_similarity"]
GateScale = Literal["absolute", "relative"]

VALIDATED: tuple[Policy, ...] = ("validation", "gated_validation")
"""The policies that need every model's accuracy on the server's validation images."""


def passing_peers(
    peers: Sequence[str],
    policy: Policy,
    *,
    gate: float = 0.0,
    scale: GateScale = "absolute",
    target: str = "",
    accuracy: Mapping[str, float] | None = None,
    similarity: Mapping[str, float] | None = None,
) -> list[str]:
    r"""Keep those of the chosen peers that pass the policy.

    .. math:: \Omega_v = \{n : V(n) \ge V(m)\}, \quad \Omega_{gv} = \{n : V(n) \ge \rho\},
              \quad \Omega_{gs} = \{n : W_{mn} \ge \rho\}

    A relative gate is :math:`\rho \max_k V(k)` over all models, or :math:`\rho \max_k W_{mk}` over the target's others.

    Args:
        peers: the chosen peers :math:`S_T`.
        policy: ``none`` keeps all.
        gate: :math:`\rho`, in [0, 1].
        scale: ``absolute`` or ``relative``.
        target: the site that asks, :math:`m`.
        accuracy: :math:`V`, of each site's last model on the server's validation images; for validation policies.
        similarity: :math:`W_{mk}` of the target with each other site; for ``gated_similarity``.

    Returns:
        The peers that pass, in their order; none is a possible answer.

    Raises:
        ValueError: if the policy or scale is unknown, the gate is not in [0, 1], or what the policy needs is missing.

    Example:
        >>> accuracy = {"a": 0.7, "b": 0.7, "c": 0.69}
        >>> passing_peers(["b", "c"], "validation", target="a", accuracy=accuracy)
        ['b']
        >>> passing_peers(["b", "c"], "gated_validation", gate=0.75, accuracy=accuracy)
        []
        >>> passing_peers(["b", "c"], "gated_validation", gate=0.75, scale="relative", accuracy=accuracy)
        ['b', 'c']
    """
    if policy not in get_args(Policy):
        raise ValueError(f"policy must be one of {', '.join(get_args(Policy))}, got {policy!r}")
    if scale not in get_args(GateScale):
        raise ValueError(f"scale must be absolute or relative, got {scale!r}")
    require_fraction(gate, "gate")
    if policy == "none":
        return list(peers)
    values = similarity if policy == "gated_similarity" else accuracy
    if values is None:
        raise ValueError(f"policy {policy} needs {'similarity' if policy == 'gated_similarity' else 'accuracy'}")
    for site in [*peers, *([target] if policy == "validation" else [])]:
        if site not in values:
            raise ValueError(f"policy {policy} has no value for {site!r}, only for {', '.join(values) or 'none'}")
    if policy == "validation":
        least = values[target]
    else:
        least = gate * max(values.values(), default=0.0) if scale == "relative" else gate
    return [peer for peer in peers if values[peer] >= least]
