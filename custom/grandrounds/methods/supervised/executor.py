"""Supervised training at a site: FedAvg, and local-only lower and upper bounds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from grandrounds.federation.context import SiteContext
from grandrounds.federation.executor import SiteExecutor
from grandrounds.federation.messages import Payload, Result
from grandrounds.methods.supervised.training import Algorithm, TrainingOptions, train_supervised


class SupervisedExecutor(SiteExecutor):
    """Trains on labelled images only.

    Args:
        labels: see :class:`~grandrounds.methods.supervised.training.TrainingOptions`, as the next seven.
        batch_size: images per step.
        steps: steps per round.
        learning_rate: of the optimizer.
        class_weights: ``median`` or ``none``.
        algorithm: ``adam`` or ``sgd``.
        proximal_weight: mu of FedProx.
        weak_augmentation: whether images are augmented.
        options: those of :class:`~grandrounds.federation.executor.SiteExecutor`.
    """

    def __init__(
        self,
        *,
        labels: Literal["labelled", "all"] = "labelled",
        batch_size: int = 16,
        steps: int = 26,
        learning_rate: float = 5e-5,
        class_weights: Literal["median", "none"] = "median",
        algorithm: Algorithm = "adam",
        proximal_weight: float = 0.0,
        weak_augmentation: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.training = TrainingOptions(
            labels, batch_size, steps, learning_rate, class_weights, algorithm, proximal_weight, weak_augmentation
        )

    def options(self) -> dict[str, Any]:
        """The training options."""
        return asdict(self.training)

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round."""
        network = self.starting_model(payload, context)
        optimizer = self.make_optimizer(network, self.training.learning_rate, self.training.algorithm)
        return self.finish(payload, network, optimizer, train_supervised(network, optimizer, context, self.training))
