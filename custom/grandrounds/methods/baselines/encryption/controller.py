"""Mutual learning on a server that can add rows and not read them."""

from __future__ import annotations

from typing import Any, ClassVar

from grandrounds.errors import ConfigurationError
from grandrounds.federation.paths import SERVER, key_folders
from grandrounds.methods.baselines.encryption.ciphertexts import find_key
from grandrounds.methods.baselines.encryption.exchange import EncryptedExchange
from grandrounds.methods.mutual.contributions import RowSum
from grandrounds.methods.mutual.controller import MutualController
from grandrounds.methods.mutual.exchange import RowExchange
from grandrounds.protocol.messages import ReleaseKind, State

FIXED = {"content": "probabilities", "weighting": "uniform", "wire": "fp32"}


class EncryptedController(MutualController):
    """MDH-FL whose rows are encrypted (CKKS): only sums are made, and only sites can read them.

    The server has the public key alone. It cannot check that rows are distributions; the sites check that the sum is one of
    as many distributions as there are contributors.

    Args:
        options: those of :class:`~grandrounds.methods.mutual.controller.MutualController`; rows are probabilities of equal
            weight, and ``wire`` stays ``fp32``.
    """

    row_kind: ClassVar[ReleaseKind] = ReleaseKind.ENCRYPTED_ROWS

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, value in FIXED.items():
            if getattr(self.exchange, name) != value:
                raise ConfigurationError(
                    f"{name} must be {value} where rows are encrypted, got {getattr(self.exchange, name)}"
                )
        self._context = b""

    def start(self) -> None:
        """Read the list of the public set, if there is one, and the public key.

        Raises:
            ConfigurationError: if there is no key, or it is a secret one.
        """
        super().start()
        self._context = find_key(key_folders(self.fl_ctx), SERVER)

    def encoded_sum(self, row_sum: RowSum) -> State:
        """The ciphertexts of the sum."""
        return {"sum": row_sum.total}

    def sum_notes(self, row_sum: RowSum) -> dict[str, Any]:
        """Nothing can be told of it."""
        return {}

    def row_exchange(self, public: str, per_epoch: int) -> RowExchange:
        """What takes ciphertexts and adds them up."""
        return EncryptedExchange(public, len(self.problem.classes), self.exchange, self._context)
