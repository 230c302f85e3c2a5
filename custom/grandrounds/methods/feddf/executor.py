"""FedDF at a site: train the model that the server has distilled, and send the update."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.mutual.executor import DeliveredModelExecutor
from grandrounds.protocol.entries import require_like
from grandrounds.protocol.messages import GLOBAL, UPDATE, Payload, Release, ReleaseKind, State, model_update
from grandrounds.protocol.tensors import difference


class FusionExecutor(DeliveredModelExecutor):
    """Trains the model of its architecture; its own model is what the server has distilled last."""

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({UPDATE: ReleaseKind.MODEL_UPDATE})
    required: ClassVar[tuple[str, ...]] = (GLOBAL,)

    def starting_state(self, payload: Payload, context: SiteContext) -> State:
        """The model that was sent; else the last one that was.

        Raises:
            MessageError: if it does not fit.
        """
        if GLOBAL not in payload.parts:
            return super().starting_state(payload, context)
        require_like(payload.parts[GLOBAL], self.network(context).state_dict(), "the distilled model")
        return payload.parts[GLOBAL]

    def releases_of(self, trained: State, sent: State) -> dict[str, Release]:
        """The update."""
        return model_update(difference(trained, sent))
