"""Sites that encrypt what they send: MDH-FL, and federated averaging of own models."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from torch import Tensor

from grandrounds.federation.encrypted import decrypt_mean, encrypt_model, encryption_of
from grandrounds.federation.keys import find_key
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.federation.site.store import SiteStore
from grandrounds.methods.mutual.executor import SOFT_LABELS, VALUES, DeliveredModelExecutor, MutualExecutor
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.methods.mutual.soft_labels import SoftLabels, require_probabilities
from grandrounds.privacy.mechanisms.ciphertexts import decrypt, encrypt
from grandrounds.protocol.messages import Payload, Release, ReleaseKind, State
from grandrounds.protocol.paths import key_folders

SUM, CIPHER_WEIGHTS = "sum", "weights"


class KeyHolder(SiteExecutor):
    """A site that finds its secret key before each task."""

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
    """Learns from the sum of all soft labels, which the sites alone can decrypt."""

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({SOFT_LABELS: ReleaseKind.ENCRYPTED_VALUES})

    def on_result_released(self, reply: Shareable, payload: Payload, store: SiteStore) -> None:
        """Nothing: ciphertexts leave unmodified or not at all."""

    def release_of(self, encoded: Tensor) -> Release:
        """The ciphertexts of the soft labels."""
        return Release(ReleaseKind.ENCRYPTED_VALUES, {VALUES: encrypt(encoded, self._key)})

    def decoded_sum(
        self,
        encoded: Tensor,
        rounds: Mapping[str, int],
        weights: Mapping[str, float],
        shape: tuple[int, int],
        options: ExchangeOptions,
    ) -> SoftLabels:
        """The decrypted sum.

        Raises:
            MessageError: if it is damaged, not as large, or no sum of so many distributions.
        """
        return decrypted_sum(encoded, self._key, rounds, weights, shape)


def decrypted_sum(
    packed: Tensor, key: bytes, rounds: Mapping[str, int], weights: Mapping[str, float], shape: tuple[int, int]
) -> SoftLabels:
    """The sum as a site reads it.

    Args:
        packed: as the server sends it.
        key: the secret key.
        rounds: the contributors, each with the exchange that its soft labels are from.
        weights: of the contributors: one each.
        shape: public images and classes.

    Raises:
        MessageError: if it is damaged, not as large, or no sum of so many distributions.
        ValueError: if rounds and weights do not fit.
    """
    name = "the sum of the encrypted soft labels"
    total = decrypt(packed, key, shape, name)
    require_probabilities(total, *shape, name, parties=len(rounds))
    return SoftLabels(total, dict(rounds), dict(weights))


class EncryptedMeanExecutor(KeyHolder, DeliveredModelExecutor):
    """Trains the mean of all models, which the sites alone can decrypt, on the site's own labels."""

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({CIPHER_WEIGHTS: ReleaseKind.ENCRYPTED_VALUES})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._decrypted: tuple[Payload, State] | None = None

    def work(
        self, task_name: str, payload: Payload, fl_ctx: FLContext, abort_signal: Signal
    ) -> tuple[Shareable, SiteStore]:
        """Do the task, and forget the mean that was decrypted for it."""
        try:
            return super().work(task_name, payload, fl_ctx, abort_signal)
        finally:
            self._decrypted = None

    def starting_state(self, payload: Payload, context: SiteContext) -> State:
        """The mean of the models of the last round; without one the site's own, which at first is the same at all sites.

        Raises:
            MessageError: if the sum is not of so many models.
        """
        if SUM not in payload.parts:
            return super().starting_state(payload, context)
        if self._decrypted is None or self._decrypted[0] is not payload:
            template = super().starting_state(payload, context)  # for what is not in the sum
            mean = decrypt_mean(payload.parts[SUM][SUM], self._key, encryption_of(template, "")["shapes"])
            self._decrypted = (payload, {**template, **mean})
        return self._decrypted[1]

    def releases_of(self, trained: State, sent: State) -> dict[str, Release]:
        """The ciphertexts of the weights."""
        return {
            CIPHER_WEIGHTS: Release(
                ReleaseKind.ENCRYPTED_VALUES, {CIPHER_WEIGHTS: encrypt_model(trained, 1.0, self._key)}
            )
        }
