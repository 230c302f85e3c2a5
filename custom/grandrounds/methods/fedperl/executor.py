"""FedPerl at a site: FixMatch with the peers' predictions in its pseudo-labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.fedperl.loss import PeerPseudoLabeler, UnanimousPseudoLabeler, VotingPseudoLabeler
from grandrounds.methods.fedperl.model_store import LOST, received_peers
from grandrounds.methods.fedperl.options import PeerLearningOptions
from grandrounds.methods.fixmatch.executor import FixMatchExecutor
from grandrounds.models.inference.forward import Forward
from grandrounds.models.norm import folded_copy
from grandrounds.protocol.messages import Payload, Result, State, require_like
from grandrounds.protocol.task import Task

LABELERS = {"mean": PeerPseudoLabeler, "unanimous": UnanimousPseudoLabeler, "vote": VotingPseudoLabeler}


class FedPerlExecutor(FixMatchExecutor):
    """Semi-supervised peer learning (Bdair et al., MELBA 2022). Without peers it equals FixMatch to the bit."""

    models = ("shared",)
    needs_exclusive: ClassVar[bool] = False
    peer_learning: PeerLearningOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.semi_supervised.teacher != "local" and self.peer_learning.consistency_weight:
            raise ConfigurationError(
                "consistency_weight draws the trained model's predictions to the peers', and with "
                f"teacher={self.semi_supervised.teacher} another model predicts; set consistency_weight to 0"
            )

    def require_kind(self, kind: Task) -> None:
        """See :meth:`SiteExecutor.require_kind`."""
        super().require_kind(kind)
        if self.peer_learning.peer_agreement != "mean":
            kind.require_exclusive("executor.peer_agreement", "set it to mean")

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round; ``peers_lost`` counts the peers that the site should hold and does not."""
        received, lost = received_peers(payload, context.cache)
        result = self.train_with(self._labeler(received, context), payload, context)
        return replace(result, metrics={**result.metrics, LOST: float(lost)}) if lost else result

    def _labeler(self, received: Mapping[str, State], context: SiteContext) -> PeerPseudoLabeler | None:
        peers = [self._frozen(state, context, name) for name, state in received.items()]
        if not peers:
            return None
        options = self.peer_learning
        labeler = LABELERS[options.peer_agreement]
        return labeler(context.problem.kind, peers, options.consistency_weight, options.consistency_reduction)

    def _frozen(self, state: State, context: SiteContext, name: str) -> Forward:
        network = self.network(context)
        require_like(state, network.state_dict(), name)
        network.load_state_dict(state)
        return context.forward(folded_copy(network))
