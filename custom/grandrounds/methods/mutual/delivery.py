"""Servers whose last round only delivers the models that the round before has made (FedDF, encrypted averaging)."""

from __future__ import annotations

from typing import Any, ClassVar

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.server.controller import RoundController
from grandrounds.models.registry import architecture_fingerprint
from grandrounds.protocol.messages import State
from grandrounds.protocol.registration import Registration


class DeliveringController(RoundController):
    """Sites train the model that they are sent; the last round delivers it, and every site tests its own."""

    registrations: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.rounds < 2:
            raise ConfigurationError(f"rounds must be at least 2: the last only delivers, got {self.rounds}")
        if self.problem.weights is not None:
            raise ConfigurationError("problem.weights must be null: the first models are drawn from the seed")

    @property
    def delivers(self) -> bool:
        """Whether this is the last round."""
        return self.round_number == self.rounds

    def model(self) -> None:
        """There is none: each site scores and tests its own."""

    def require_architecture(self, site: str, registration: Registration, expected: State) -> None:
        """Refuse a site whose network differs from the server's.

        Args:
            site: its name.
            registration: what it has reported.
            expected: state of the server's network of that backbone.

        Raises:
            MessageError: naming the backbone.
        """
        if registration.facts.get("architecture") != architecture_fingerprint(expected):
            raise MessageError(
                f"{site} has a {registration.facts.get('backbone')} that differs from the job's in more than its weights "
                "(backbone, norm, channels or classes); take these out of its grandrounds.json"
            )
