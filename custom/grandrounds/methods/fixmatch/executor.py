"""FixMatch at a site: alone, or under federated averaging (SSFL)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.fixmatch.training import Guide, SemiSupervisedOptions, train_semi_supervised
from grandrounds.methods.supervised.executor import SupervisedExecutor
from grandrounds.options import take_options
from grandrounds.protocol.messages import Payload, Result


class FixMatchExecutor(SupervisedExecutor):
    """Trains on labelled images and on pseudo-labels of the others.

    Args:
        options: those of :class:`~grandrounds.methods.fixmatch.training.SemiSupervisedOptions` and of
            :class:`~grandrounds.methods.supervised.executor.SupervisedExecutor`.
    """

    option_groups: ClassVar[tuple[type, ...]] = (SemiSupervisedOptions,)
    record_level_obstacle: ClassVar[str] = "its loss joins a labelled and an unlabelled batch"

    def __init__(self, **options: Any) -> None:
        self.semi_supervised, others = take_options(SemiSupervisedOptions, options)
        super().__init__(**others)
        self.needs_labels = not self.semi_supervised.accept_unlabelled

    def options(self) -> dict[str, Any]:
        """The training and pseudo-label options."""
        return {**super().options(), **asdict(self.semi_supervised)}

    def guide(self, payload: Payload, context: SiteContext) -> Guide | None:
        """Who else has a say in the pseudo-labels: nobody."""
        return None

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round."""
        guide = self.guide(payload, context)
        network = self.starting_model(payload, context)
        optimizer = self.make_optimizer(network, self.training.learning_rate, self.training.algorithm)
        metrics = train_semi_supervised(network, optimizer, context, self.training, self.semi_supervised, guide)
        return self.finish(payload, network, optimizer, metrics)
