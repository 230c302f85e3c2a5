"""Supervised training at a site: FedAvg, and local-only lower and upper bounds."""

from __future__ import annotations

from typing import Any, ClassVar

from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.closed_form import OwnHeadExecutor
from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.supervised.training import (
    TrainingOptions,
    require_single_images,
    train_privately,
    train_supervised,
    units_to_learn,
)
from grandrounds.privacy.mechanisms.record_level import RecordLevelOptions
from grandrounds.protocol.messages import Payload, Result
from grandrounds.protocol.problem import SITE_NORM
from grandrounds.protocol.spending import Spending
from grandrounds.protocol.task import Task


class SupervisedExecutor(OwnHeadExecutor):
    """Trains on labelled images only; with ``record_noise_multiplier`` under record-level differential privacy."""

    training: TrainingOptions
    record_level_obstacle: ClassVar[str] = ""
    needs_exclusive: ClassVar[bool] = False
    scales_gradients = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.protection.record_noise_multiplier is not None:
            require_single_images(self.training)

    def require_kind(self, kind: Task) -> None:
        """See :meth:`SiteExecutor.require_kind`."""
        super().require_kind(kind)
        self.training.require_kind(kind)

    def spending(self, context: SiteContext) -> Spending | None:
        """The privacy cost of a round whose update leaves the site."""
        protection = self._protection(context)
        return protection.spending() if protection else None

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round."""
        network = self.starting_model(payload, context)
        training = self.training
        optimizer = self.make_optimizer(
            network, training.rate_of(context.round_number), training.algorithm, head_rate=training.head_rate
        )
        protection = self._protection(context)
        if protection:
            metrics = train_privately(network, optimizer, context, self.training, protection)
        else:
            metrics = train_supervised(network, optimizer, context, self.training)
        return self.finish(payload, network, optimizer, metrics)

    def _protection(self, context: SiteContext) -> RecordLevelOptions | None:
        if self.protection.record_noise_multiplier is None:
            return None
        if context.model_spec.norm == SITE_NORM:
            raise ConfigurationError(
                "with problem.norm=site every image changes how the others are normalised: "
                "executor.record_noise_multiplier needs problem.norm=group, or frozen"
            )
        records = len(units_to_learn(context, self.training, self.protection.privacy_unit))
        return self.protection.of_round(records, self.training.batch_size, self.training.steps)
