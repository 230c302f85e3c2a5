"""What a method says on the server: the hooks of a run, in the order in which they are called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from grandrounds.protocol.messages import Payload, Result, State
from grandrounds.protocol.precision import FULL, UpdatePrecision
from grandrounds.protocol.registration import Registration


class RoundHooks(ABC):
    """Implemented by a method's controller; see :class:`~grandrounds.federation.server.controller.RoundController`."""

    registrations: ClassVar[bool] = False
    """Whether each site is asked, once and before it first takes part, what its executor's ``register`` says of it; the
    answers are in ``self.registered``, and a site that has not answered yet, or was refused, takes no part."""
    registered: dict[str, Registration]

    @abstractmethod
    def payload(self, parts: Mapping[str, State] | None = None, **values: Any) -> Payload:
        """A payload with these parts and values, and with what every task says; methods call it, the seam has it."""

    # Once, when the run starts or goes on.

    def start(self) -> None:
        """Prepare the state before the first round; a checkpoint may replace it."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what survived."""

    def load_snapshots(self, snapshots: Mapping[str, tuple[int, dict[str, Tensor]]]) -> None:
        """Take over the large states; each is read from its file when it is looked up."""

    # Who takes part.

    def registration_for(self, site: str) -> Payload:
        """What a site gets to know when it is asked who it is."""
        return self.payload()

    def check_registration(self, site: str, registration: Registration) -> None:
        """Refuse a site for this run by an error, whose text is the reason; the others go on."""

    def update_precision(self) -> UpdatePrecision:
        """In which precision updates of models travel."""
        return FULL

    def joining_needs(self) -> str:
        """What a site must have to join, for the error when too few could."""
        return ""

    def participants(self, well: list[str]) -> list[str]:
        """Which of the sites that are well train in this round, in canonical order."""
        return well

    # A round.

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

    def round_notes(self) -> dict[str, Any]:
        """What the method adds to the round's entry in the record (plain JSON values)."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What must survive the server's process."""
        return {}

    def snapshots(self) -> Mapping[str, tuple[int, State | None]]:
        """Large states that change rarely, by name, each with the round it is from; they are saved once.

        None stands for one that the method has saved itself, see
        :class:`~grandrounds.federation.checkpoints.TensorFileStore`.
        """
        return {}
