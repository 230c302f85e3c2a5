"""What a method implements at a site."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from nvflare.apis.shareable import Shareable

from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.store import SiteStore
from grandrounds.protocol.messages import Payload, ReleaseKind, Result
from grandrounds.protocol.registration import Registration
from grandrounds.protocol.spending import Spending


class SiteHooks(ABC):
    """What :class:`~grandrounds.federation.site.executor.SiteExecutor` asks of a method."""

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({})
    """What leaves the site beside the model update and metrics, by name; a method declares it here."""
    registration_facts: ClassVar[tuple[str, ...]] = ()
    """Names of the short texts that :meth:`register` may return; a method declares them here."""
    needs_labels = True
    """Whether a site without a labelled training image cannot take part."""
    models: ClassVar[tuple[str, ...]] = ("shared", "own")
    """What the option ``model`` may be."""
    scales_gradients = False
    """Whether training scales its loss by the context's ``gradient_scaler``, as ``float16`` needs it."""
    needs_exclusive: ClassVar[bool] = True
    """Whether the method's training compares classes with each other, so that they must exclude each other."""
    record_level_obstacle: ClassVar[str] = "it has no loss that is a mean over single images"
    """Why a method's training cannot be record-level private; empty where it can."""

    def __init_subclass__(cls, **options: object) -> None:
        """A method that trains in another way than its base must declare itself what its training can do."""
        super().__init_subclass__(**options)
        if "train" in vars(cls) and not cls.record_level_obstacle and "record_level_obstacle" not in vars(cls):
            cls.record_level_obstacle = SiteHooks.record_level_obstacle
        if "train" in vars(cls) and "needs_exclusive" not in vars(cls):
            cls.needs_exclusive = SiteHooks.needs_exclusive

    @abstractmethod
    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round and return the update, further releases and metrics."""

    def spending(self, context: SiteContext) -> Spending | None:
        """What a round's training costs where it protects single images itself and something leaves; else None."""
        return None

    def register(self, payload: Payload, context: SiteContext) -> Registration:
        """What this site returns before it first takes part, if the method asks; it leaves the site as it is."""
        return Registration()

    def on_result_released(self, reply: Shareable, payload: Payload, store: SiteStore) -> None:
        """The answer to a training has left, as the filters have made it: stage the state anew if it depends on that."""
