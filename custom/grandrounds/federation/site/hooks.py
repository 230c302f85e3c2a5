"""What a method implements at a site, and the optimizers that it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import nn

from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.store import SiteStore
from grandrounds.federation.site.training import Algorithm, new_optimizer, parameter_groups, set_rate
from grandrounds.protocol.messages import UPDATE, Payload, Registration, ReleaseKind, Result
from grandrounds.protocol.spending import Spending

OPTIMIZER = "optimizer"


class SiteHooks(ABC):
    """What :class:`~grandrounds.federation.site.executor.SiteExecutor` asks of a method.

    Attributes:
        kept: what lasts until the site's next round.
    """

    kept: dict[str, Any]

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({})
    """What leaves the site beside the model update and metrics, by name; a method declares it here."""
    registration_facts: ClassVar[tuple[str, ...]] = ()
    """Names of the short texts that :meth:`register` may return; a method declares them here."""
    needed: ClassVar[tuple[str, ...]] = ()
    """Numbers and facts of a registration without which the server refuses a site."""
    needs_labels = True
    """Whether a site without a labelled training image cannot take part."""
    models: ClassVar[tuple[str, ...]] = ("shared", "own")
    """What the option ``model`` may be."""
    scales_gradients = False
    """Whether training scales its loss by the context's ``gradient_scaler``, as ``float16`` needs it."""
    needs_exclusive: ClassVar[bool] = True
    """Whether the method's training compares classes with each other, so that they must exclude each other."""
    needs_float32: ClassVar[str] = ""
    """Why a method refuses a GPU that rounds what it multiplies; empty where it does not."""
    record_level_obstacle: ClassVar[str] = "it has no loss that is a mean over single images"
    """Why a method's training cannot be record-level private; empty where it can."""

    def __init_subclass__(cls, **options: object) -> None:
        """A method that trains in another way than its base must declare itself what its training can do."""
        super().__init_subclass__(**options)
        if "train" in vars(cls) and not cls.record_level_obstacle and "record_level_obstacle" not in vars(cls):
            cls.record_level_obstacle = SiteHooks.record_level_obstacle
        if "train" in vars(cls) and "needs_exclusive" not in vars(cls):
            cls.needs_exclusive = SiteHooks.needs_exclusive

    @classmethod
    def releases_with(cls, options: Mapping[str, Any]) -> dict[str, ReleaseKind]:
        """What may leave a site in a round beside metrics, by name, with these options of the executor."""
        shared = {UPDATE: ReleaseKind.MODEL_UPDATE} if options["model"] == "shared" else {}
        return {**shared, **cls.releases}

    @classmethod
    def nothing_to_do(cls, labelled: Mapping[str, int], unlabelled: Mapping[str, int]) -> str:
        """Why a method has nothing of its own to do at these sites; empty where it has.

        Args:
            labelled: training images whose label is used, by site.
            unlabelled: the other training images, by site.
        """
        return ""

    @abstractmethod
    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round and return the update, further releases and metrics."""

    def spending(self, context: SiteContext) -> Spending | None:
        """What a round's training costs where it protects single images itself and something leaves; else None."""
        return None

    def register(self, payload: Payload, context: SiteContext) -> Registration:
        """What this site returns before it first takes part, if the method asks; it leaves the site as it is."""
        return Registration()

    def on_result_released(self, left: Result, payload: Payload, store: SiteStore) -> None:
        """The answer to a training has left, as the filters have made it: stage the state anew if it depends on that."""

    def make_optimizer(
        self,
        network: nn.Module,
        learning_rate: float,
        algorithm: Algorithm = "adam",
        *,
        head_rate: float = 1.0,
        role: str = "",
        **options: Any,
    ) -> torch.optim.Optimizer:
        """An optimizer, fresh or with the state that it had at the end of the last round here.

        Args:
            network: whose parameters it is for.
            learning_rate: of all of them; that of the head is multiplied by ``head_rate``.
            algorithm: ``adam`` or ``sgd``.
            head_rate: of :class:`~grandrounds.federation.site.training.RateOptions`.
            role: distinguishes several optimizers of a method.
            options: torch's, such as ``betas``; without them there is no weight decay.
        """
        optimizer = new_optimizer(parameter_groups(network, head_rate), algorithm, learning_rate, **options)
        kept = self.kept.get(_optimizer_key(role))
        if kept is not None:
            optimizer.load_state_dict(kept)
            set_rate(optimizer, learning_rate)
        return optimizer

    def keep_optimizers(self, optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer]) -> None:
        """Keep the state of one optimizer, or of several by role."""
        optimizers = optimizer if isinstance(optimizer, Mapping) else {"": optimizer}
        self.kept.update({_optimizer_key(role): made.state_dict() for role, made in optimizers.items()})


def _optimizer_key(role: str) -> str:
    return f"{OPTIMIZER}.{role}" if role else OPTIMIZER
