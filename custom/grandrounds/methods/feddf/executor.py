"""FedDF at a site: train the model that the server has distilled, and send the update."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from grandrounds.errors import MessageError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.store import copy_to_cpu
from grandrounds.methods.mutual.executor import OwnModelExecutor
from grandrounds.protocol.messages import (
    GLOBAL,
    UPDATE,
    Payload,
    ReleaseKind,
    Result,
    State,
    model_update,
    require_like,
)
from grandrounds.protocol.tensors import difference


class FusionExecutor(OwnModelExecutor):
    """Trains the model of its architecture; its own model is what the server has distilled last.

    The last round only delivers. In each of the last ``test_rounds`` rounds the model that was sent is tested.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({UPDATE: ReleaseKind.MODEL_UPDATE})
    needed: ClassVar[tuple[str, ...]] = ("backbone",)

    def starting_state(self, payload: Payload, context: SiteContext) -> State:
        """The model that was sent; else the last one that was.

        Raises:
            MessageError: if it does not fit.
        """
        if GLOBAL not in payload.parts:
            return super().starting_state(payload, context)
        require_like(payload.parts[GLOBAL], self.network(context).state_dict(), "the distilled model")
        return payload.parts[GLOBAL]

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train what was sent, and send the update; in the last round keep it as it is."""
        if GLOBAL not in payload.parts or not isinstance(payload.values.get("rounds"), int):
            raise MessageError(f"the task lacks the number of rounds or {GLOBAL}")
        sent, rounds, number = self.starting_state(payload, context), payload.values["rounds"], context.round_number
        network = self.starting_model(payload, context)
        metrics = self.scores_of_round(network, context, rounds)
        first = not self.kept
        self.kept = {"model": copy_to_cpu(sent)}
        samples = len(context.data.rows("labelled"))
        if number == rounds:
            return Result({}, metrics, samples)
        metrics |= self.train_round(network, first, number - 1, rounds - 1, context)
        return Result(model_update(difference(copy_to_cpu(network.state_dict()), sent)), metrics, samples)
