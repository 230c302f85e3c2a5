"""Servers that add up encrypted values and cannot read them: MDH-FL, and federated averaging."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.encrypted import encrypted_numbers, encryption_of
from grandrounds.federation.keys import find_key
from grandrounds.methods.baselines.encryption.executor import CIPHER_WEIGHTS, SUM
from grandrounds.methods.mutual.controller import DeliveringController, MutualController
from grandrounds.methods.mutual.exchange import SoftLabelExchange
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.methods.mutual.soft_labels import SoftLabels, recent
from grandrounds.models.registry import build_model
from grandrounds.privacy.mechanisms.ciphertexts import add_encrypted, require_encrypted
from grandrounds.protocol.messages import Payload, ReleaseKind, Result, State
from grandrounds.protocol.names import SERVER
from grandrounds.protocol.paths import key_folders
from grandrounds.protocol.registration import Registration

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
        """Refuse ciphertexts that cannot be added to those of the others, without any other effect.

        Raises:
            MessageError: naming the site, if they are damaged, or of another number of values.
        """
        require_encrypted(encoded, self._key, images * self._classes, f"soft labels of {site}")
        return encoded

    def total(self, number: int) -> SoftLabels | None:
        """The encrypted sum after an exchange; None if there are no soft labels."""
        chosen = recent(self._latest, number, self._options.max_age)
        if not chosen:
            return None
        rounds = {site: labels.newest for site, labels in chosen.items()}
        total = add_encrypted([labels.values for labels in chosen.values()], self._key, "soft labels")
        return SoftLabels(total, rounds, dict.fromkeys(chosen, 1.0))


class EncryptedController(MutualController):
    """MDH-FL whose soft labels are encrypted (CKKS): only sums are made, and only sites can read them.

    The server has the public key alone. It cannot check that soft labels are distributions; the sites check that the sum is
    one of as many distributions as there are contributors. ``content``, ``weighting`` and ``wire`` keep their defaults.
    """

    release_kind: ClassVar[ReleaseKind] = ReleaseKind.ENCRYPTED_VALUES

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, value in ENCRYPTED_OPTIONS.items():
            if getattr(self.exchange, name) != value:
                raise ConfigurationError(
                    f"{name} must be {value} where soft labels are encrypted, got {getattr(self.exchange, name)}"
                )
        self._key = b""

    def start(self) -> None:
        """Read the list of the public set, if there is one, and the public key.

        Raises:
            ConfigurationError: if there is no key, or it is a secret one.
        """
        super().start()
        self._key = find_key(key_folders(self.fl_ctx), SERVER)

    def encoded_sum(self, total: SoftLabels) -> Tensor:
        """The ciphertexts of the sum."""
        return total.values

    def sum_notes(self, total: SoftLabels) -> dict[str, Any]:
        """Nothing is known of it."""
        return {}

    def new_exchange(self, per_epoch: int) -> SoftLabelExchange:
        """What receives ciphertexts and adds them up."""
        return EncryptedExchange(len(self.problem.classes), self.exchange, self._key)


class EncryptedMeanController(DeliveringController):
    """FedAvg whose models are encrypted (CKKS): a substitute for swarm learning with encrypted weights.

    Every site has the job's network, and all have equal weights. The server cannot check a model, nor test one. The last
    round only delivers. A sum is of at least ``min_sites`` models.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.run.min_sites < 2:
            raise ConfigurationError(
                f"min_sites must be at least 2: the sum of one model is that model, got {self.run.min_sites}"
            )
        self._key = b""
        self._initial: State = {}
        self._sent: Tensor | None = None
        self._contributors: list[str] = []
        self._added: Tensor | None = None
        self._adding: list[str] = []

    def start(self) -> None:
        """Find the public key, and build a model to know its size and architecture.

        Raises:
            ConfigurationError: if there is no key, or it is a secret one.
        """
        self._key = find_key(key_folders(self.fl_ctx), SERVER)
        self._initial = build_model(self.problem.model_spec(pretrained=False), self.seed).state_dict()

    def check_registration(self, site: str, registration: Registration) -> None:
        """Refuse another network than the job's, because weights of different networks have no mean.

        Raises:
            MessageError: naming the backbone.
        """
        self.require_architecture(site, registration, self._initial)

    def open_round(self, sites: list[str]) -> None:
        """Start an empty sum."""
        self._added, self._adding = None, []

    def payload_for(self, site: str) -> Payload:
        """The sum of the last round, the same for all sites."""
        parts = {} if self._sent is None else {SUM: {SUM: self._sent}}
        return self.payload(parts, rounds=self.rounds)

    def check(self, site: str, result: Result) -> None:
        """Refuse ciphertexts that are not a model of the job's network.

        Raises:
            MessageError: naming what is wrong.
        """
        if self.delivers:
            if result.releases:
                raise MessageError(f"{site} has sent a model in the last round, which is not used")
            return
        release = result.releases.get(CIPHER_WEIGHTS)
        if (
            release is None
            or release.kind is not ReleaseKind.ENCRYPTED_VALUES
            or set(release.tensors) != {CIPHER_WEIGHTS}
        ):
            raise MessageError(f"{site} must send its encrypted weights")
        numbers = encrypted_numbers(encryption_of(self._initial, "")["shapes"])
        require_encrypted(release.tensors[CIPHER_WEIGHTS], self._key, numbers, f"weights of {site}")

    def absorb(self, site: str, result: Result) -> None:
        """Add the site's model; sums of ciphertexts do not depend on their order."""
        if CIPHER_WEIGHTS in result.releases:
            received = result.releases[CIPHER_WEIGHTS].tensors[CIPHER_WEIGHTS]
            earlier = [] if self._added is None else [self._added]
            name = f"weights of {site}"
            self._added = add_encrypted([*earlier, received], self._key, name) if earlier else received
            self._adding.append(site)

    def close_round(self) -> None:
        """Send the sum in the next round."""
        if self._added is not None:
            self._sent, self._contributors = self._added, sorted(self._adding)
        self._added = None

    def round_notes(self) -> dict[str, Any]:
        """How many models are in the sum."""
        return {} if self.delivers else {"models": len(self._contributors)}

    def state_dict(self) -> dict[str, Any]:
        """The last sum, and whose models are in it."""
        return {"sum": self._sent, "contributors": self._contributors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sum."""
        self._sent, self._contributors = state["sum"], list(state["contributors"])
