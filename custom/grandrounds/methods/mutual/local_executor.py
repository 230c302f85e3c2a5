"""Sites that train on their own labels: the base of mutual learning, FedDF, encrypted averaging and swarm learning."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from torch import nn

from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.federation.site.scoring import score
from grandrounds.federation.site.store import copy_to_cpu
from grandrounds.methods.mutual.options import FinalTestOptions, LocalOptions
from grandrounds.methods.mutual.training import train_locally
from grandrounds.protocol.messages import Payload, Release, Result, State
from grandrounds.protocol.registration import Registration


class LocalTrainingExecutor(SiteExecutor):
    """Trains on the site's labels with a new optimizer in every round."""

    record_level_obstacle: ClassVar[str] = "its local batches are not drawn in secret"
    local: LocalOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"model": self.models[0], **options})
        if self.site_options.optimizer != "fresh":
            raise ConfigurationError("optimizer must be fresh: others have changed the model since the last round")

    def train_round(
        self, network: nn.Module, first: bool, epoch: int, epochs: int, context: SiteContext
    ) -> dict[str, float]:
        """Pretrain a model in a site's first round, else train it for ``local_epochs``; return the loss as a metric."""
        passes = self.local.pretrain_epochs if first else self.local.local_epochs
        return {"loss": train_locally(network, self.local, passes, epoch, epochs, context)} if passes > 0 else {}


class OwnModelExecutor(LocalTrainingExecutor):
    """A site with a model of its own, which may be tested in the last rounds."""

    models: ClassVar[tuple[str, ...]] = ("own",)
    testing: FinalTestOptions

    def register(self, payload: Payload, context: SiteContext) -> Registration:
        """Nothing beside the architecture.

        Raises:
            GrandRoundsError: if there is no test image for ``test_rounds``.
        """
        if self.testing.test_rounds and not len(context.data.rows("test")):
            raise GrandRoundsError(f"{context.site}: executor.test_rounds needs test images, and there is none")
        return Registration()

    def scores_of_round(
        self, network: nn.Module, context: SiteContext, rounds: int, prefix: str = "test"
    ) -> dict[str, float]:
        """Scores on the site's test images, as metrics of one of the last rounds; nothing in the rounds before.

        Args:
            network: left in evaluation mode if it is tested.
            context: of the task.
            rounds: of the run.
            prefix: of the names of the scores.
        """
        if context.round_number <= rounds - self.testing.test_rounds:
            return {}
        scores, _ = score(network.eval(), context.data.rows("test"), context)
        return {f"{prefix}.{name}": value for name, value in scores.items()}


class DeliveredModelExecutor(OwnModelExecutor):
    """Trains the model that the server sends and keeps it as the site's own; the last round only delivers.

    In each of the last ``test_rounds`` rounds the model that was sent is tested.
    """

    required: ClassVar[tuple[str, ...]] = ()
    """Parts that each training task must have."""

    @abstractmethod
    def releases_of(self, trained: State, sent: State) -> dict[str, Release]:
        """What leaves of a model that was trained from the state that was sent."""

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train what was sent; in the last round keep it as it is."""
        if not set(self.required) <= payload.parts.keys() or not isinstance(payload.values.get("rounds"), int):
            raise MessageError(f"the task lacks the number of rounds{''.join(f' or {part}' for part in self.required)}")
        sent, rounds, number = self.starting_state(payload, context), payload.values["rounds"], context.round_number
        network = self.starting_model(payload, context)
        metrics = self.scores_of_round(network, context, rounds)
        first = not self.kept
        self.kept = {"model": copy_to_cpu(sent)}
        samples = len(context.data.rows("labelled"))
        if number == rounds:
            return Result({}, metrics, samples)
        metrics |= self.train_round(network, first, number - 1, rounds - 1, context)
        return Result(self.releases_of(copy_to_cpu(network.state_dict()), sent), metrics, samples)
