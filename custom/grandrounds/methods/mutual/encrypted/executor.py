"""Sites encrypt their soft labels, and read the sum alone."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.store import SiteStore
from grandrounds.methods.mutual.executor import SOFT_LABELS, VALUES, MutualExecutor
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.methods.mutual.soft_labels import SoftLabels, require_soft_labels
from grandrounds.privacy.mechanisms.encrypted_sums import MIN_SITES, SumOf, decrypt_sum, encrypt_tensors
from grandrounds.protocol.messages import Payload, Release, ReleaseKind, Result


class EncryptedExecutor(MutualExecutor):
    """Learns from the sum of all soft labels, which the sites alone can decrypt."""

    encrypts: ClassVar[bool] = True
    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({SOFT_LABELS: ReleaseKind.ENCRYPTED_VALUES})

    def on_result_released(self, left: Result, payload: Payload, store: SiteStore) -> None:
        """Nothing: ciphertexts leave unmodified or not at all."""

    def release_of(self, encoded: Tensor, payload: Payload, context: SiteContext) -> Release:
        """The ciphertexts of the soft labels."""
        use = SumOf(payload.values["run_id"], SOFT_LABELS, payload.round_number)
        contribution = encrypt_tensors({SOFT_LABELS: encoded}, context.site, self.secret_key, use)
        return Release(ReleaseKind.ENCRYPTED_VALUES, {VALUES: contribution})

    def decoded_sum(
        self,
        encoded: Tensor,
        rounds: Mapping[str, int],
        weights: Mapping[str, float],
        shape: tuple[int, int],
        options: ExchangeOptions,
        payload: Payload,
    ) -> SoftLabels:
        """The decrypted sum.

        Raises:
            MessageError: if it is damaged, not as large, or no sum of so many distributions of these contributors.
        """
        last = payload.round_number - 1
        use = SumOf(payload.values["run_id"], SOFT_LABELS, last, oldest=last - options.max_age)
        return decrypted_sum(encoded, self.secret_key, rounds, weights, shape, use, self.confidentiality.min_models)


def decrypted_sum(
    packed: Tensor,
    key: bytes,
    rounds: Mapping[str, int],
    weights: Mapping[str, float],
    shape: tuple[int, int],
    use: SumOf,
    at_least: int = MIN_SITES,
) -> SoftLabels:
    """The sum as a site reads it.

    Args:
        packed: as the server sends it.
        key: the secret key.
        rounds: the contributors, each with the exchange that its soft labels are from.
        weights: of the contributors: one each.
        shape: public images and classes.
        use: what the sum must be of.
        at_least: how many sites it must be of.

    Raises:
        MessageError: if it is not that of these contributors, of too few, or no sum of so many distributions.
        ValueError: if rounds and weights do not fit.
    """
    name = "the sum of the encrypted soft labels"
    total, roster = decrypt_sum(packed, key, {SOFT_LABELS: shape}, use, at_least)
    if roster != rounds:
        raise MessageError(f"{name} is of {roster}, expected {dict(rounds)} (site: round)")
    require_soft_labels(total[SOFT_LABELS], *shape, name, parties=len(rounds))
    return SoftLabels(total[SOFT_LABELS], dict(rounds), dict(weights))
