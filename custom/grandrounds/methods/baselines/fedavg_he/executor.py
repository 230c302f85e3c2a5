"""A site of federated averaging that encrypts its weights."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from grandrounds.errors import MessageError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.hooks import SiteHooks
from grandrounds.federation.site.store import SiteStore, copy_to_cpu
from grandrounds.methods.baselines.encryption.executor import KeyHolder
from grandrounds.methods.baselines.fedavg_he.models import decrypt_mean, encrypt_weights
from grandrounds.methods.feddf.executor import FusionExecutor
from grandrounds.protocol.messages import Payload, Release, ReleaseKind, State

SUM, WEIGHTS = "sum", "weights"


class EncryptedMeanExecutor(KeyHolder, FusionExecutor):
    """Trains the mean of all models, which the sites alone can decrypt, on the own labels.

    Args:
        options: those of :class:`~grandrounds.methods.feddf.executor.FusionExecutor`.
    """

    needed: ClassVar[tuple[str, ...]] = ()
    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({WEIGHTS: ReleaseKind.ENCRYPTED_ROWS})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._opened: tuple[Payload, State] | None = None

    def work(
        self, task_name: str, payload: Payload, fl_ctx: FLContext, abort_signal: Signal
    ) -> tuple[Shareable, SiteStore]:
        """Do the task, and forget the mean that was decrypted for it."""
        try:
            return super().work(task_name, payload, fl_ctx, abort_signal)
        finally:
            self._opened = None

    def starting_state(self, payload: Payload, context: SiteContext) -> State:
        """The mean of the models of the last round; without one what this site has, which at first is the same everywhere.

        Raises:
            MessageError: if the sum is none of so many models.
        """
        if SUM not in payload.parts:
            return SiteHooks.starting_state(self, payload, context)
        if self._opened is None or self._opened[0] is not payload:
            sites = payload.values.get("models")
            if not isinstance(sites, int) or sites < 2:
                raise MessageError(f"a sum must be of two models at least, got {sites!r}")
            template = copy_to_cpu(self.network(context).state_dict())
            self._opened = (payload, decrypt_mean(payload.parts[SUM][SUM], self._key, sites, template))
        return self._opened[1]

    def releases_of(self, trained: State, sent: State) -> dict[str, Release]:
        """The ciphertexts of the weights."""
        return {WEIGHTS: Release(ReleaseKind.ENCRYPTED_ROWS, {WEIGHTS: encrypt_weights(trained, self._key)})}
