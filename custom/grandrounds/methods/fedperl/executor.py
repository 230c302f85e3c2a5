"""FedPerl at a site: FixMatch whose pseudo-labels the peers have a say in."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, ClassVar

from torch import nn

from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.fedperl.delivery import LOST, received_peers
from grandrounds.methods.fedperl.options import GuidanceOptions
from grandrounds.methods.fedperl.peer_pseudo_labels import PeerGuide, VotingGuide
from grandrounds.methods.fixmatch.executor import FixMatchExecutor
from grandrounds.methods.fixmatch.training import Guide
from grandrounds.models.inference import folded_copy
from grandrounds.options import take_options
from grandrounds.protocol.messages import Payload, Result, State, require_like


class FedPerlExecutor(FixMatchExecutor):
    """Semi-supervised peer learning (Bdair et al., MELBA 2022). Without peers it is FixMatch, bit for bit.

    Args:
        options: those of :class:`~grandrounds.methods.fedperl.options.GuidanceOptions` and of
            :class:`~grandrounds.methods.fixmatch.executor.FixMatchExecutor`.
    """

    models = ("shared",)
    option_groups: ClassVar[tuple[type, ...]] = (GuidanceOptions,)

    def __init__(self, **options: Any) -> None:
        self.guidance, others = take_options(GuidanceOptions, options)
        super().__init__(**others)
        self._lost = 0

    def options(self) -> dict[str, Any]:
        """All options that shape the training."""
        return {**super().options(), **asdict(self.guidance)}

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
        options = self.guidance
        if options.peer_agreement == "vote":
            return VotingGuide(peers, options.consistency_weight)
        return PeerGuide(peers, options.consistency_weight, options.consistency_reduction)

    def _frozen(self, state: State, context: SiteContext, name: str) -> nn.Module:
        network = self.network(context)
        require_like(state, network.state_dict(), name)
        network.load_state_dict(state)
        return folded_copy(network)
