r"""Dynamic policies: which of the most similar peers are worth learning from (Bdair et al., MELBA 2022, Eq. 10 to 12).

The paper's gates are absolute. On hard data no model reaches an accuracy of 0.85, so an absolute gate of that height
lets nobody pass and the site trains without peers; a relative gate is a share of the best value that there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from grandrounds.checks import require_fraction

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
