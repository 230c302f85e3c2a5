"""FedDF at a site: take over what the server has distilled, train it on the own labels, send the update."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from grandrounds.errors import MessageError
from grandrounds.federation.aggregation import difference
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.store import copy_to_cpu
from grandrounds.methods.mutual.local_executor import OwnLabelsExecutor
from grandrounds.methods.mutual.local_training import Epoch, learn_own_labels
from grandrounds.methods.mutual.training import Private
from grandrounds.protocol.messages import (
    GLOBAL,
    UPDATE,
    Payload,
    Release,
    ReleaseKind,
    Result,
    State,
    model_update,
    require_like,
)


class FusionExecutor(OwnLabelsExecutor):
    """Trains the model of its architecture; its own model is what the server has distilled last.

    In each of the last ``test_rounds`` rounds the model that was sent is tested.

    Args:
        options: those of :class:`~grandrounds.methods.mutual.local_executor.OwnLabelsExecutor`.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({UPDATE: ReleaseKind.MODEL_UPDATE})
    needed: ClassVar[tuple[str, ...]] = (GLOBAL,)
    """Parts without which no training task makes sense."""

    def starting_state(self, payload: Payload, context: SiteContext) -> State:
        """The model that was sent; where none is, the last one that was.

        Raises:
            MessageError: if it does not fit.
        """
        if GLOBAL not in payload.parts:
            return super().starting_state(payload, context)
        require_like(payload.parts[GLOBAL], self.network(context).state_dict(), "the distilled model")
        return payload.parts[GLOBAL]

    def releases_of(self, trained: State, sent: State) -> dict[str, Release]:
        """What leaves of a model that was trained, of which the server knows what it was before."""
        return model_update(difference(trained, sent))

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train what was sent; in the last round keep it as it is."""
        if not set(self.needed) <= payload.parts.keys() or not isinstance(payload.values.get("rounds"), int):
            raise MessageError(f"the task lacks the number of rounds{''.join(f' or {part}' for part in self.needed)}")
        sent, rounds, number = self.starting_state(payload, context), payload.values["rounds"], context.round_number
        network = self.starting_model(payload, context)
        metrics = self.scores_of_round(network, context, rounds)
        passes = self.local.local_epochs if self.kept else self.local.pretrain_epochs
        self.kept = {"model": copy_to_cpu(sent)}
        private = Private.of(context.data)
        if number == rounds:
            return Result({}, metrics, len(private.rows))
        if passes > 0:
            epoch = Epoch(context.seed, context.site, number - 1, rounds - 1)
            metrics["loss"] = learn_own_labels(network, private, self.local, passes, epoch, context)
        return Result(self.releases_of(copy_to_cpu(network.state_dict()), sent), metrics, len(private.rows))
