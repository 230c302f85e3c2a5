"""The mean of models that the server cannot read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.encrypted_model import CIPHERTEXTS, encryption_of, with_weight
from grandrounds.federation.server.aggregate import Aggregator, Demands
from grandrounds.privacy.mechanisms.encrypted_sums import MIN_SITES, EncryptedSum, find_key
from grandrounds.protocol.messages import ENCRYPTION, UPDATE, ReleaseKind, Result, State
from grandrounds.protocol.names import SERVER
from grandrounds.protocol.tensors import FULL


class EncryptedMean(Aggregator):
    """Adds up encrypted models, which the sites have weighted themselves; the aggregate is the next model.

    Args:
        weighting: of sites, ``uniform`` or ``samples``.
    """

    key: bytes

    def __init__(self, weighting: str) -> None:
        self._weighting = weighting

    def require_possible(self, demands: Demands) -> None:
        """Refuse what needs a model, or an update, that can be read.

        Raises:
            ConfigurationError: naming the option.
        """
        if demands.readers:
            raise ConfigurationError(
                f"aggregation=encrypted hides models and single updates from the server, and {demands.readers[0]}"
            )
        if demands.precision != FULL:
            raise ConfigurationError("update_precision must be float32 with aggregation=encrypted: ciphertexts keep it")
        if demands.min_sites < MIN_SITES:
            raise ConfigurationError(
                f"min_sites must be at least {MIN_SITES} with aggregation=encrypted: of two, each site learns the other"
            )

    def prepare(self, template: State, keys: Sequence[Path]) -> None:
        """Find the public key.

        Raises:
            ConfigurationError: if there is none, or it is a secret one.
        """
        self.key = find_key(keys, SERVER)
        self._encryption = encryption_of(template, self._weighting)
        self._integers = {name: value for name, value in template.items() if not value.is_floating_point()}

    def values(self) -> dict[str, Any]:
        """What a site must know to read the model, and to encrypt its own."""
        return {ENCRYPTION: self._encryption}

    def open(self, sites: Iterable[str]) -> None:
        """Start an empty sum."""
        self._sum = EncryptedSum(self.key, "the update")

    def check(self, site: str, result: Result, model: State) -> None:
        """Refuse an update that is no ciphertext of a model of this size; what it holds cannot be seen.

        Raises:
            MessageError: naming what is wrong.
        """
        release = result.releases.get(UPDATE)
        if release is None or release.kind is not ReleaseKind.ENCRYPTED_VALUES or set(release.tensors) != {CIPHERTEXTS}:
            raise MessageError(f"{site} must encrypt its update")
        self._sum.check(site, release.tensors[CIPHERTEXTS], with_weight(self._encryption["shapes"]))

    def add(self, site: str, update: State, weight: float = 1.0) -> None:
        """Add a site's model."""
        self._sum.add(site, update[CIPHERTEXTS])

    def skip(self, site: str) -> None:
        """A site gives no update; nothing waits for it."""

    def close(self) -> dict[str, Tensor] | None:
        """The sum as a model, or None without any."""
        total = self._sum.close()
        return None if total is None else {**self._integers, CIPHERTEXTS: total}

    def moved(self, start: State, aggregate: State) -> dict[str, Tensor]:
        """The aggregate itself: sites have added their updates to the model that they started from."""
        return dict(aggregate)
