"""What mutual learning and FedDF have in common at a site: own labels to learn from, and tests in the last rounds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

from torch import nn

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.federation.site.scoring import scored
from grandrounds.methods.mutual.options import LocalOptions
from grandrounds.options import take_options
from grandrounds.protocol.messages import Payload
from grandrounds.protocol.registration import Registration


class OwnLabelsExecutor(SiteExecutor):
    """A site with a model of its own that learns from its own labels with a new optimizer in every round.

    Args:
        test_rounds: in so many of the last rounds the model is tested, for means over rounds.
        options: those of :class:`~grandrounds.methods.mutual.options.LocalOptions` and of
            :class:`~grandrounds.federation.site.executor.SiteExecutor`.
    """

    models: ClassVar[tuple[str, ...]] = ("own",)
    record_level_obstacle: ClassVar[str] = "its batches of own labels are not drawn in secret"
    option_groups: ClassVar[tuple[type, ...]] = (LocalOptions,)

    def __init__(self, *, test_rounds: int = 0, **options: Any) -> None:
        self.local, others = take_options(LocalOptions, options)
        super().__init__(**{"model": "own", **others})
        if test_rounds < 0:
            raise ConfigurationError(f"test_rounds must be at least 0, got {test_rounds}")
        if self.site_options.optimizer != "fresh":
            raise ConfigurationError(
                "optimizer must be fresh: between two rounds of own labels others change the model"
            )
        self.test_rounds = test_rounds

    def options(self) -> dict[str, Any]:
        """How to learn from the own labels."""
        return asdict(self.local)

    def register(self, payload: Payload, context: SiteContext) -> Registration:
        """Nothing beside the architecture.

        Raises:
            GrandRoundsError: if there is no test image for ``test_rounds``.
        """
        if self.test_rounds and not len(context.data.rows("test")):
            raise GrandRoundsError(f"{context.site}: executor.test_rounds needs test images, and there is none")
        return Registration()

    def scores_of_round(
        self, network: nn.Module, context: SiteContext, rounds: int, moment: str = "test"
    ) -> dict[str, float]:
        """Scores on the site's test images, as metrics of one of the last rounds; nothing in the rounds before.

        Args:
            network: left in evaluation mode if it is tested.
            context: of the task.
            rounds: of the run.
            moment: what the names of the scores begin with.
        """
        if context.round_number <= rounds - self.test_rounds:
            return {}
        scores, _ = scored(network.eval(), context.data.rows("test"), context)
        return {f"{moment}.{name}": value for name, value in scores.items()}
