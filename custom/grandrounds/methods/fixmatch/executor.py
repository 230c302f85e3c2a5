"""FixMatch at a site: alone, or under federated averaging (SSFL)."""

from __future__ import annotations

from typing import Any, ClassVar

from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.fixmatch.training import PseudoLabeler, SemiSupervisedOptions, train_semi_supervised
from grandrounds.methods.supervised.executor import SupervisedExecutor
from grandrounds.protocol.messages import Payload, Result


class FixMatchExecutor(SupervisedExecutor):
    """Trains on labelled images and on pseudo-labels of unlabelled ones."""

    semi_supervised: SemiSupervisedOptions
    record_level_obstacle: ClassVar[str] = "its loss joins a labelled and an unlabelled batch"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.needs_labels = not self.semi_supervised.accept_unlabelled

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round on the model's own pseudo-labels."""
        return self.train_with(None, payload, context)

    def train_with(self, labeler: PseudoLabeler | None, payload: Payload, context: SiteContext) -> Result:
        """Train for one round on the labeler's pseudo-labels; without one they are the model's own."""
        network = self.starting_model(payload, context)
        optimizer = self.make_optimizer(network, self.training.learning_rate, self.training.algorithm)
        metrics = train_semi_supervised(network, optimizer, context, self.training, self.semi_supervised, labeler)
        return self.finish(payload, network, optimizer, metrics)
