"""FedPerl at a site: FixMatch whose pseudo-labels the peers have a say in."""

from __future__ import annotations

from typing import Any

from torch import nn

from grandrounds.errors import ConfigurationError
from grandrounds.federation.context import SiteContext
from grandrounds.federation.messages import Payload, State, require_like
from grandrounds.methods.fedperl.guidance import PeerGuide
from grandrounds.methods.fedperl.loss import ConsistencyReduction
from grandrounds.methods.fixmatch.executor import FixMatchExecutor
from grandrounds.methods.fixmatch.training import Guide
from grandrounds.models.folding import folded_copy


class FedPerlExecutor(FixMatchExecutor):
    """Semi-supervised peer learning (Bdair et al., MELBA 2022). Without peers it is FixMatch, bit for bit.

    Args:
        consistency_weight: gamma of Eq. 9; the paper's is 0.01. 0 is what the authors' code does, where the term has no
            gradient.
        consistency_reduction: ``mean`` over classes, or ``sum`` (the squared norm as printed).
        options: those of :class:`~grandrounds.methods.fixmatch.executor.FixMatchExecutor`.
    """

    def __init__(
        self,
        *,
        consistency_weight: float = 0.01,
        consistency_reduction: ConsistencyReduction = "mean",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not consistency_weight >= 0:
            raise ConfigurationError(f"consistency_weight must be at least 0, got {consistency_weight}")
        if consistency_reduction not in ("mean", "sum"):
            raise ConfigurationError(f"consistency_reduction must be mean or sum, got {consistency_reduction!r}")
        self.consistency_weight = consistency_weight
        self.consistency_reduction = consistency_reduction

    def options(self) -> dict[str, Any]:
        """All options that shape the training."""
        return {
            **super().options(),
            "consistency_weight": self.consistency_weight,
            "consistency_reduction": self.consistency_reduction,
        }

    def guide(self, payload: Payload, context: SiteContext) -> Guide | None:
        """The peers that the server sent, if any."""
        peers = [
            self._frozen(payload.parts[name], context, name)
            for name in sorted(payload.parts)
            if name.startswith("peer-")
        ]
        return PeerGuide(peers, self.consistency_weight, self.consistency_reduction) if peers else None

    def _frozen(self, state: State, context: SiteContext, name: str) -> nn.Module:
        network = self.network(context)
        require_like(state, network.state_dict(), name)
        network.load_state_dict(state)
        return folded_copy(network)
