"""What becomes of the contributions of a round: the types behind the option ``aggregation``.

An aggregator lives as long as the run. In each round it is opened for the sites that are asked, checks and takes in what
they answer, and is closed to the aggregate, from which the next model follows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.protocol.entries import floating_entries, require_like
from grandrounds.protocol.messages import Result, State
from grandrounds.protocol.tensors import UpdatePrecision, apply_update, require_finite_tensors


@dataclass(frozen=True)
class Demands:
    """What a run asks of its aggregator.

    Attributes:
        min_sites: how many contributions an aggregate has at least.
        precision: in which sites send updates.
        readers: what at the server reads models or single updates, each as a sentence such as "peers are single models".
    """

    min_sites: int
    precision: UpdatePrecision
    readers: Sequence[str] = ()


class Aggregator(ABC):
    """Takes in the contributions of a round's sites; the base of those that the server can read.

    Attributes:
        key: the public key of sums that it cannot read; None where it reads them.
    """

    key: bytes | None = None

    def require_possible(self, demands: Demands) -> None:
        """Refuse a run whose demands this aggregator cannot meet.

        Raises:
            ConfigurationError: naming the option.
        """

    def prepare(self, template: State, keys: Sequence[Path]) -> None:
        """Once, before the first round.

        Args:
            template: the initial model.
            keys: the folders in which keys are looked for.

        Raises:
            ConfigurationError: if a key is needed and there is none, or it is not the server's.
        """

    def values(self) -> dict[str, Any]:
        """What a task tells a site about its contribution, beside the model."""
        return {}

    @abstractmethod
    def open(self, sites: Iterable[str]) -> None:
        """A round begins in which these sites are asked; whatever is left of the last one is forgotten."""

    def check(self, site: str, result: Result, model: State) -> None:
        """Refuse a contribution that does not fit, without any other effect.

        Args:
            site: whose it is.
            result: its answer.
            model: the current one.

        Raises:
            MessageError: naming what is wrong.
        """
        if result.update is None:
            raise MessageError("the result has no update")
        require_like(result.update, floating_entries(model), "update")

    @abstractmethod
    def add(self, site: str, update: State, weight: float = 1.0) -> None:
        """Take one site's contribution, which has passed the check."""

    @abstractmethod
    def skip(self, site: str) -> None:
        """Note that a site will not contribute to this round."""

    @abstractmethod
    def close(self) -> dict[str, Tensor] | None:
        """The aggregate of what came, or None when nothing did; sites that are still awaited count as missing."""

    def moved(self, start: State, aggregate: State) -> dict[str, Tensor]:
        """The model that an aggregate leads to from the one that the sites started from.

        Raises:
            MessageError: if it is not finite.
        """
        model = apply_update(start, aggregate)
        require_finite_tensors(model, "the model")
        return model

    def notes(self) -> dict[str, Any]:
        """What the record of the round says about contributions (plain JSON values)."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What must survive from one round to the next."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
