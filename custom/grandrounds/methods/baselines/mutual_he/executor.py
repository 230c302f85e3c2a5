"""Mutual learning at a site that encrypts its soft labels."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from nvflare.apis.shareable import Shareable
from torch import Tensor

from grandrounds.federation.site.store import SiteStore
from grandrounds.methods.baselines.encryption import KeyHolder, decrypt, encrypt
from grandrounds.methods.mutual.executor import SOFT_LABELS, VALUES, MutualExecutor
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.methods.mutual.soft_labels import SoftLabels, require_probabilities
from grandrounds.protocol.messages import Payload, Release, ReleaseKind


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
