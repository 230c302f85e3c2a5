"""FixMatch at a site: alone, or under federated averaging (SSFL)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from grandrounds.errors import ConfigurationError
from grandrounds.federation.context import SiteContext
from grandrounds.federation.messages import Payload, Result
from grandrounds.methods.fixmatch.loss import UnsupervisedReduction
from grandrounds.methods.fixmatch.training import Guide, SemiSupervisedOptions, train_semi_supervised
from grandrounds.methods.supervised.executor import SupervisedExecutor

LEAST_AND_GREATEST = 2


class FixMatchExecutor(SupervisedExecutor):
    """Trains on labelled images and on pseudo-labels of the others.

    Args:
        threshold: see :class:`~grandrounds.methods.fixmatch.training.SemiSupervisedOptions`, as the next eight.
        unsupervised_weight: factor of the unsupervised loss.
        unsupervised_reduction: ``accepted_mean`` or ``batch_mean``.
        equalize_noop: leave out RandAugment's equalisation.
        supervised_weight: factor of the supervised loss.
        unlabelled_batch_size: unlabelled images per step.
        strong_levels: least and greatest strength of RandAugment.
        weak_pass: ``train`` or ``eval``.
        accept_unlabelled: let sites without labelled images take part.
        options: those of :class:`~grandrounds.methods.supervised.executor.SupervisedExecutor`.
    """

    def __init__(
        self,
        *,
        threshold: float = 0.6,
        unsupervised_weight: float = 0.5,
        unsupervised_reduction: UnsupervisedReduction = "accepted_mean",
        equalize_noop: bool = False,
        supervised_weight: float = 1.0,
        unlabelled_batch_size: int | None = None,
        strong_levels: list[int] | None = None,
        weak_pass: Literal["train", "eval"] = "train",
        accept_unlabelled: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if strong_levels is not None and len(strong_levels) != LEAST_AND_GREATEST:
            raise ConfigurationError(f"strong_levels must be two numbers, got {strong_levels}")
        self.semi_supervised = SemiSupervisedOptions(
            threshold=threshold,
            unsupervised_weight=unsupervised_weight,
            unsupervised_reduction=unsupervised_reduction,
            equalize_noop=equalize_noop,
            supervised_weight=supervised_weight,
            unlabelled_batch_size=unlabelled_batch_size,
            strong_levels=None if strong_levels is None else (strong_levels[0], strong_levels[1]),
            weak_pass=weak_pass,
            accept_unlabelled=accept_unlabelled,
        )
        self.needs_labels = not accept_unlabelled

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
