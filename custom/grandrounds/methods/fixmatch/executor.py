"""FixMatch at a site: alone, or under federated averaging (SSFL)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from grandrounds.data.batches import eval_batches
from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.store import copy_to_cpu
from grandrounds.methods.fixmatch.training import PseudoLabeler, SemiSupervisedOptions, averaged, train_semi_supervised
from grandrounds.methods.supervised.executor import SupervisedExecutor
from grandrounds.models.adaptation import STATISTICS_BATCH
from grandrounds.models.inference.forward import Forward
from grandrounds.models.norm import adapt_statistics, folded_copy
from grandrounds.protocol.messages import Payload, Result
from grandrounds.protocol.problem import FROZEN_NORMS
from grandrounds.protocol.task import Task

AVERAGE = "average of received models"


class FixMatchExecutor(SupervisedExecutor):
    """Trains on labelled images and on pseudo-labels of unlabelled ones."""

    semi_supervised: SemiSupervisedOptions
    needs_exclusive: ClassVar[bool] = False
    record_level_obstacle: ClassVar[str] = "its loss joins a labelled and an unlabelled batch"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.needs_labels = not self.semi_supervised.accept_unlabelled
        if self.semi_supervised.teacher != "local":
            self.model.require_shared(
                f"teacher={self.semi_supervised.teacher} labels with received models, and with model=own there are none; "
                "set teacher to local"
            )

    def require_kind(self, kind: Task) -> None:
        """See :meth:`SiteExecutor.require_kind`."""
        super().require_kind(kind)
        if self.semi_supervised.adaptive_thresholds:
            kind.require_exclusive("executor.adaptive_thresholds", "set it to false")

    @classmethod
    def nothing_to_do(cls, labelled: Mapping[str, int], unlabelled: Mapping[str, int]) -> str:
        """Without an unlabelled image there is no pseudo-label."""
        none = "no site has an unlabelled training image, so there is no pseudo-label: this is supervised training"
        return "" if any(unlabelled.values()) else none

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round on the model's own pseudo-labels."""
        return self.train_with(None, payload, context)

    def train_with(self, labeler: PseudoLabeler | None, payload: Payload, context: SiteContext) -> Result:
        """Train for one round on the labeler's pseudo-labels; without one they are the model's own."""
        network = self.starting_model(payload, context)
        training = self.training
        optimizer = self.make_optimizer(
            network, training.rate_of(context.round_number), training.algorithm, head_rate=training.head_rate
        )
        metrics = train_semi_supervised(
            network, optimizer, context, self.training, self.semi_supervised, labeler, self._teacher(network, context)
        )
        return self.finish(payload, network, optimizer, metrics)

    def _teacher(self, network: nn.Module, context: SiteContext) -> Forward | None:
        """A copy of the received model, or of the average of those received here, in evaluation mode."""
        options = self.semi_supervised
        if options.teacher == "local":
            return None
        received = copy_to_cpu(network.state_dict())
        if options.teacher == "average":
            times, before = self.kept.get(AVERAGE, (0, {}))
            average = averaged(before, received, times + 1, options.teacher_decay)
            self.kept[AVERAGE] = (times + 1, average)
            network.load_state_dict(average)
        teacher = copy.deepcopy(network)
        network.load_state_dict(received)
        if options.teacher_statistics == "site":
            if context.model_spec.norm in FROZEN_NORMS:
                raise ConfigurationError(
                    f"executor.teacher_statistics=site is for problem.norm=batch, and it is {context.model_spec.norm}; "
                    "leave it out, or set problem.norm to site, which is for all models of a site"
                )
            rows = eval_batches(context.data.rows("train"), STATISTICS_BATCH)
            adapt_statistics(teacher, (context.views(batch, "none") for batch in rows))
        return context.forward(folded_copy(teacher))
