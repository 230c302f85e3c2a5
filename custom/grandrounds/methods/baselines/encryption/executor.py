"""A site with a secret key, and mutual learning at one that encrypts its rows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from grandrounds.federation.paths import key_folders
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.federation.site.store import SiteStore
from grandrounds.methods.baselines.encryption.ciphertexts import encrypt_rows, find_key
from grandrounds.methods.baselines.encryption.exchange import decrypt_packed_sum, pack
from grandrounds.methods.mutual.contributions import RowSum
from grandrounds.methods.mutual.exchange import RowMessage
from grandrounds.methods.mutual.executor import ROWS, MutualExecutor
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.protocol.messages import Payload, Release, ReleaseKind, State


class KeyHolder(SiteExecutor):
    """A site that finds its secret key before each task.

    Args:
        options: those of the executor that it is combined with.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._key = b""

    def work(
        self, task_name: str, payload: Payload, fl_ctx: FLContext, abort_signal: Signal
    ) -> tuple[Shareable, SiteStore]:
        """Find the key, then do the task.

        Raises:
            ConfigurationError: if there is no key.
        """
        self._key = find_key(key_folders(fl_ctx), fl_ctx.get_identity_name())
        return super().work(task_name, payload, fl_ctx, abort_signal)


class EncryptedExecutor(KeyHolder, MutualExecutor):
    """Learns from the sum of all rows, which the sites alone can decrypt.

    Args:
        options: those of :class:`~grandrounds.methods.mutual.executor.MutualExecutor`.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({ROWS: ReleaseKind.ENCRYPTED_ROWS})

    def on_result_released(self, reply: Shareable, payload: Payload, store: SiteStore) -> None:
        """Nothing: ciphertexts leave as they are or not at all."""

    def release_of(self, message: RowMessage) -> Release:
        """The ciphertexts of the rows."""
        return Release(ReleaseKind.ENCRYPTED_ROWS, {"rows": pack(encrypt_rows(message.rows, self._key))})

    def decoded_sum(
        self, sent: State, contributors: Mapping[str, Any], shape: tuple[int, int], options: ExchangeOptions
    ) -> RowSum:
        """The decrypted sum."""
        rounds, weights = contributors["rounds"], contributors["weights"]
        return decrypt_packed_sum(sent["sum"], self._key, rounds, weights, *shape)
