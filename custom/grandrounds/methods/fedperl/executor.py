"""FedPerl at a site: FixMatch whose pseudo-labels the peers have a say in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from torch import nn

from grandrounds.errors import ConfigurationError
from grandrounds.federation.context import SiteContext
from grandrounds.federation.messages import Payload, Result, State, require_like
from grandrounds.methods.fedperl.delivery import LOST, received_peers
from grandrounds.methods.fedperl.guidance import PeerGuide, VotingGuide
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
        peer_agreement: ``mean`` averages predictions (FedPerl); ``vote`` takes the majority's label where the own model is
            confident, and the divergence of the peers on those images for consistency (FedMatch).
        options: those of :class:`~grandrounds.methods.fixmatch.executor.FixMatchExecutor`.
    """

    models = ("shared",)

    def __init__(
        self,
        *,
        consistency_weight: float = 0.01,
        consistency_reduction: ConsistencyReduction = "mean",
        peer_agreement: Literal["mean", "vote"] = "mean",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not consistency_weight >= 0:
            raise ConfigurationError(f"consistency_weight must be at least 0, got {consistency_weight}")
        if consistency_reduction not in ("mean", "sum"):
            raise ConfigurationError(f"consistency_reduction must be mean or sum, got {consistency_reduction!r}")
        if peer_agreement not in ("mean", "vote"):
            raise ConfigurationError(f"peer_agreement must be mean or vote, got {peer_agreement!r}")
        self.consistency_weight = consistency_weight
        self.consistency_reduction = consistency_reduction
        self.peer_agreement = peer_agreement
        self._lost = 0

    def options(self) -> dict[str, Any]:
        """All options that shape the training."""
        return {
            **super().options(),
            "consistency_weight": self.consistency_weight,
            "consistency_reduction": self.consistency_reduction,
            "peer_agreement": self.peer_agreement,
        }

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round, and tell how many peers the site should have had and has lost."""
        result = super().train(payload, context)
        return replace(result, metrics={**result.metrics, LOST: float(self._lost)}) if self._lost else result

    def guide(self, payload: Payload, context: SiteContext) -> Guide | None:
        """The peers of this task, if there are any."""
        received, self._lost = received_peers(payload, context.cache)
        peers = [self._frozen(state, context, name) for name, state in received.items()]
        if not peers:
            return None
        if self.peer_agreement == "vote":
            return VotingGuide(peers, self.consistency_weight)
        return PeerGuide(peers, self.consistency_weight, self.consistency_reduction)

    def _frozen(self, state: State, context: SiteContext, name: str) -> nn.Module:
        network = self.network(context)
        require_like(state, network.state_dict(), name)
        network.load_state_dict(state)
        return folded_copy(network)
