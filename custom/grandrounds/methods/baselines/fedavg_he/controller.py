"""Federated averaging on a server that holds no key to what it adds up."""

from __future__ import annotations

from typing import Any, ClassVar

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.paths import SERVER, key_folders
from grandrounds.federation.server.controller import RoundController
from grandrounds.methods.baselines.encryption.ciphertexts import add_encrypted, find_key, require_encrypted
from grandrounds.methods.baselines.encryption.exchange import pack, unpack
from grandrounds.methods.baselines.fedavg_he.executor import SUM, WEIGHTS
from grandrounds.methods.baselines.fedavg_he.models import numbers_of
from grandrounds.models.registry import architecture_fingerprint, build_model
from grandrounds.protocol.messages import Payload, ReleaseKind, Result, State
from grandrounds.protocol.registration import Registration


class EncryptedMeanController(RoundController):
    """FedAvg whose models are encrypted (CKKS): a stand-in for swarm learning with encrypted weights.

    Every site has the job's network, and all count alike. The server is blind: it cannot check a model, nor test one. The
    last round only delivers. A sum is of ``min_sites`` models at least.

    Args:
        options: those of :class:`~grandrounds.federation.server.controller.RoundController`.
    """

    registrations: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, least, reason in (
            ("rounds", 2, "the last only delivers"),
            ("min_sites", 2, "the sum of one model is that model"),
        ):
            if getattr(self.run, name) < least:
                raise ConfigurationError(f"{name} must be at least {least}: {reason}, got {getattr(self.run, name)}")
        if self.problem.weights is not None:
            raise ConfigurationError("problem.weights must be null: the server sends no model that it could read")
        self._context = b""
        self._sent: State | None = None
        self._contributors: list[str] = []
        self._added: list[bytes] = []
        self._adding: list[str] = []

    def start(self) -> None:
        """Find the public key, and what a model looks like.

        Raises:
            ConfigurationError: if there is no key, or it is a secret one.
        """
        self._context = find_key(key_folders(self.fl_ctx), SERVER)
        state = build_model(self.problem.model_spec(pretrained=False), self.seed).state_dict()
        self._numbers, self._architecture = numbers_of(state), architecture_fingerprint(state)

    def check_registration(self, site: str, registration: Registration) -> None:
        """Refuse another network than the job's.

        Raises:
            MessageError: naming the backbones.
        """
        if registration.facts.get("architecture") != self._architecture:
            raise MessageError(
                f"{site} has another network ({registration.facts.get('backbone')}) than the job "
                f"({self.problem.backbone}), and weights of different networks have no mean; take it out of its "
                "grandrounds.json"
            )

    def open_round(self, sites: list[str]) -> None:
        """Nothing is added up yet."""
        self._added, self._adding = [], []

    def payload_for(self, site: str) -> Payload:
        """The sum of the last round, the same for all sites."""
        parts = {} if self._sent is None else {SUM: self._sent}
        return self.payload(parts, rounds=self.rounds, models=len(self._contributors))

    def check(self, site: str, result: Result) -> None:
        """Refuse ciphertexts that are no model of the job's network.

        Raises:
            MessageError: naming what is wrong.
        """
        if self._delivers:
            if result.releases:
                raise MessageError(f"{site} has sent a model in the last round, which nobody uses")
            return
        release = result.releases.get(WEIGHTS)
        if release is None or release.kind is not ReleaseKind.ENCRYPTED_ROWS or set(release.tensors) != {WEIGHTS}:
            raise MessageError(f"{site} must send its encrypted weights")
        name = f"weights of {site}"
        require_encrypted(unpack(release.tensors[WEIGHTS], name), self._context, self._numbers, name)

    def absorb(self, site: str, result: Result) -> None:
        """Add the site's model; sums of ciphertexts do not depend on their order."""
        if WEIGHTS in result.releases:
            came = unpack(result.releases[WEIGHTS].tensors[WEIGHTS], f"weights of {site}")
            self._added = add_encrypted([self._added, came], self._context) if self._added else came
            self._adding.append(site)

    def close_round(self) -> None:
        """The sum is what the next round starts from."""
        if self._added:
            self._sent, self._contributors = {SUM: pack(self._added)}, sorted(self._adding)
        self._added = []

    def model(self) -> None:
        """There is none that the server could read."""

    def round_notes(self) -> dict[str, Any]:
        """How many models are in the sum."""
        return {} if self._delivers else {"models": len(self._contributors)}

    def state_dict(self) -> dict[str, Any]:
        """The last sum, and whose models are in it."""
        return {"sum": self._sent, "contributors": self._contributors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the sum."""
        self._sent, self._contributors = state["sum"], list(state["contributors"])

    @property
    def _delivers(self) -> bool:
        return self.round_number == self.rounds
