"""Supervised training at a site: FedAvg, and local-only lower and upper bounds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

from grandrounds.federation.context import SiteContext
from grandrounds.federation.executor import SiteExecutor
from grandrounds.federation.messages import Payload, Result
from grandrounds.methods.supervised.training import TrainingOptions, train_supervised
from grandrounds.options import take_options


class SupervisedExecutor(SiteExecutor):
    """Trains on labelled images only.

    Args:
        options: those of :class:`~grandrounds.methods.supervised.training.TrainingOptions` and of
            :class:`~grandrounds.federation.executor.SiteExecutor`.
    """

    option_groups: ClassVar[tuple[type, ...]] = (TrainingOptions,)

    def __init__(self, **options: Any) -> None:
        self.training, others = take_options(TrainingOptions, options)
        super().__init__(**others)

    def options(self) -> dict[str, Any]:
        """The training options."""
        return asdict(self.training)

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round."""
        network = self.starting_model(payload, context)
        optimizer = self.make_optimizer(network, self.training.learning_rate, self.training.algorithm)
        return self.finish(payload, network, optimizer, train_supervised(network, optimizer, context, self.training))
