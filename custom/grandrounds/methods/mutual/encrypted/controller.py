"""The server adds up soft labels that it cannot read."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.methods.mutual.controller import MutualController
from grandrounds.methods.mutual.exchange import SoftLabelExchange
from grandrounds.methods.mutual.executor import SOFT_LABELS
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.methods.mutual.soft_labels import SoftLabels, recent
from grandrounds.privacy.mechanisms.encrypted_sums import MIN_SITES, EncryptedSum
from grandrounds.protocol.messages import ReleaseKind

ENCRYPTED_OPTIONS = {"content": "probabilities", "weighting": "uniform", "wire": "fp32"}


class EncryptedExchange(SoftLabelExchange):
    """The latest encrypted soft labels of each site, and their sum.

    Args:
        classes: number of classes.
        options: what is exchanged: probabilities, of equal weights.
        key: the public key.
    """

    def __init__(self, classes: int, options: ExchangeOptions, key: bytes) -> None:
        super().__init__(classes, options)
        self._key = key

    def check(
        self, site: str, encoded: Tensor, number: int, images: int, loss: float | None = None, change: float = 0.0
    ) -> Tensor:
        """Refuse ciphertexts that are not soft labels of this site, without any other effect.

        Raises:
            MessageError: naming the site, if they are damaged, or of another number of values.
        """
        EncryptedSum(self._key, "soft labels").check(site, encoded, {SOFT_LABELS: (images, self._classes)})
        return encoded

    def total(self, number: int) -> SoftLabels | None:
        """The encrypted sum after an exchange; None if there are no soft labels."""
        chosen = recent(self._latest, number, self._options.max_age)
        added = EncryptedSum(self._key, "soft labels")
        for site, labels in chosen.items():
            added.add(site, labels.values)
        total = added.close()
        if total is None:
            return None
        return SoftLabels(total, {site: one.newest for site, one in chosen.items()}, dict.fromkeys(chosen, 1.0))


class EncryptedController(MutualController):
    """MDH-FL whose soft labels are encrypted (CKKS): only sums are made, and only sites can read them.

    The server has the public key alone. It cannot check that soft labels are distributions; the sites check that the sum is
    one of as many distributions as there are contributors. ``content``, ``weighting`` and ``wire`` keep their defaults.
    """

    encrypts: ClassVar[bool] = True
    release_kind: ClassVar[ReleaseKind] = ReleaseKind.ENCRYPTED_VALUES

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, value in ENCRYPTED_OPTIONS.items():
            if getattr(self.exchange, name) != value:
                raise ConfigurationError(
                    f"{name} must be {value} where soft labels are encrypted, got {getattr(self.exchange, name)}"
                )
        for option, given in (
            ("min_contributors", self.contributors.min_contributors),
            ("min_sites", self.run.min_sites),
        ):
            if given < MIN_SITES:
                raise ConfigurationError(
                    f"{option} must be at least {MIN_SITES} where soft labels are encrypted, got {given}: of two, each "
                    "site learns the other's"
                )

    def encoded_sum(self, total: SoftLabels) -> Tensor:
        """The ciphertexts of the sum."""
        return total.values

    def sum_notes(self, total: SoftLabels) -> dict[str, Any]:
        """Nothing is known of it."""
        return {}

    def new_exchange(self, per_epoch: int) -> SoftLabelExchange:
        """What receives ciphertexts and adds them up."""
        return EncryptedExchange(len(self.problem.classes), self.exchange, self.public_key)
