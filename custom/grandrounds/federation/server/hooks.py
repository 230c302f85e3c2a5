"""What a method implements at the server: the hooks of a run, in the order in which they are called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from grandrounds.protocol.messages import Payload, Registration, Result, State
from grandrounds.protocol.tensors import FULL, UpdatePrecision


class RoundHooks(ABC):
    """What :class:`~grandrounds.federation.server.controller.RoundController` calls in a method."""

    registrations: ClassVar[bool] = False
    """Whether each site registers, once and before it first takes part, with what its executor's ``register`` returns. A
    site that has not registered, or was refused, takes no part."""
    needs_exclusive: ClassVar[bool] = True
    """Whether the method compares classes with each other, so that they must exclude each other."""

    # Once, when the run starts or goes on.

    def start(self) -> None:
        """Prepare the state before the first round; a checkpoint may replace it."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""

    def load_snapshots(self, snapshots: Mapping[str, tuple[int, dict[str, Tensor]]]) -> None:
        """Restore the large states; each is read from its file when it is looked up."""

    def update_precision(self) -> UpdatePrecision:
        """In which precision updates of models travel."""
        return FULL

    # Who takes part.

    def sites_ready(self, sites: list[str]) -> None:
        """Enough sites are there, and no round has begun."""

    @abstractmethod
    def registration_for(self, site: str) -> Payload:
        """What a site is sent when it registers."""

    def check_registration(self, site: str, registration: Registration) -> None:
        """Refuse a site for this run by an error, whose text is the reason; the others go on."""

    def joining_needs(self) -> str:
        """What a site must have to join, for the error when too few could."""
        return ""

    def is_secure(self) -> bool:
        """Whether what sites release is added up unseen."""
        return False

    def participants(self, available: list[str]) -> list[str]:
        """Which of the available sites train in this round, in canonical order."""
        return available

    # A round.

    def starts_trained(self) -> bool:
        """Whether the model before the first round is scored and may be selected, like that of a round 0."""
        return False

    def open_round(self, sites: list[str]) -> None:
        """A round begins in which these sites train."""

    @abstractmethod
    def payload_for(self, site: str) -> Payload:
        """What a site gets for training. All payloads of a round are made before the first answer."""

    @abstractmethod
    def model(self) -> State | None:
        """The current shared model, which is scored, selected and tested; None where sites have models of their own."""

    def check(self, site: str, result: Result) -> None:
        """Refuse a training result that does not fit, by an error and without any other effect."""

    @abstractmethod
    def absorb(self, site: str, result: Result) -> None:
        """Take in a training result that has passed the check: accumulate only, FLARE's lock is held."""

    def server_scores(self) -> dict[str, float] | None:
        """Scores of the current model on the server's own validation images, if they select the model; else None."""
        return None

    def missed(self, site: str) -> None:
        """A site that was asked to train gave no valid result."""

    @abstractmethod
    def close_round(self) -> None:
        """All results are in: compute the next state, in fresh tensors."""

    def stop_reason(self, best: int | None) -> str:
        """Why the run ends before its last round; empty if it goes on.

        Args:
            best: the round of the best model so far; None if no model was scored.
        """
        return ""

    def round_notes(self) -> dict[str, Any]:
        """What the method adds to the round's entry in the record (plain JSON values)."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What must survive the server's process."""
        return {}

    def snapshots(self) -> Mapping[str, tuple[int, State | None]]:
        """Large states that change rarely, by name, each with the round it is from; they are saved once.

        None is a state that the method has saved itself, see
        :class:`~grandrounds.federation.checkpoints.TensorFileStore`.
        """
        return {}
