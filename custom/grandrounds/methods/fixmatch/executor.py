"""FixMatch at a site: alone, or under federated averaging (SSFL)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from grandrounds.federation.context import SiteContext
from grandrounds.federation.messages import Payload, Result
from grandrounds.methods.fixmatch.loss import UnsupervisedReduction
from grandrounds.methods.fixmatch.training import Guide, SemiSupervisedOptions, train_semi_supervised
from grandrounds.methods.supervised.executor import SupervisedExecutor


class FixMatchExecutor(SupervisedExecutor):
    """Trains on labelled images and on pseudo-labels of the others.

    Args:
        threshold: see :class:`~grandrounds.methods.fixmatch.training.SemiSupervisedOptions`, as the next three.
        unsupervised_weight: factor of the unsupervised loss.
        unsupervised_reduction: ``accepted_mean`` or ``batch_mean``.
        equalize_noop: leave out RandAugment's equalisation.
        options: those of :class:`~grandrounds.methods.supervised.executor.SupervisedExecutor`.
    """

    def __init__(
        self,
        *,
        threshold: float = 0.6,
        unsupervised_weight: float = 0.5,
        unsupervised_reduction: UnsupervisedReduction = "accepted_mean",
        equalize_noop: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.semi_supervised = SemiSupervisedOptions(
            threshold, unsupervised_weight, unsupervised_reduction, equalize_noop
        )

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
        optimizer = self.adam(network, self.training.learning_rate)
        metrics = train_semi_supervised(network, optimizer, context, self.training, self.semi_supervised, guide)
        return self.finish(payload, network, optimizer, metrics)
