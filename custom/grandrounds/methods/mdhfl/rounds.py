"""Which exchange belongs to which round of the federation, and what it is about.

Round 1 trains on the own labels and publishes; each later round learns from the exchange before, from the own labels when
an epoch ends, and publishes again. The last round publishes nothing. So E collaborative epochs of K exchanges take K E + 1
rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from grandrounds.errors import ConfigurationError
from grandrounds.methods.mdhfl.options import ExchangeOptions
from grandrounds.methods.mdhfl.schedule import Indices, exchange_chunks, public_order


@dataclass(frozen=True)
class Exchanges:
    """The exchanges of a run.

    Attributes:
        images: size of the public set.
        seed: of the run.
        options: what is exchanged.

    Raises:
        ConfigurationError: if the public images of an exchange make no batch, or are fewer than ``per_round``.
    """

    images: int
    seed: int
    options: ExchangeOptions

    def __post_init__(self) -> None:
        if self.options.per_round is not None and self.options.per_round > self.images:
            raise ConfigurationError(
                f"per_round is {self.options.per_round}, the public set has {self.images} images; lower it or leave it out"
            )
        self._parts(1)

    @property
    def per_epoch(self) -> int:
        """Exchanges in a collaborative epoch."""
        return len(self._parts(1))

    def epochs(self, rounds: int) -> int:
        """Collaborative epochs that so many rounds make.

        Raises:
            ConfigurationError: if the rounds end within an epoch.

        Example:
            >>> Exchanges(64, 1, ExchangeOptions(public_batch=16)).epochs(41)
            40
        """
        epochs, left = divmod(rounds - 1, self.per_epoch)
        if left or not epochs:
            raise ConfigurationError(
                f"rounds must be one more than a multiple of the {self.per_epoch} exchanges of an epoch, got {rounds}"
            )
        return epochs

    def epoch(self, number: int) -> int:
        """The epoch of an exchange; both count from 1."""
        return (number - 1) // self.per_epoch + 1

    def begins_epoch(self, number: int) -> bool:
        """Whether an exchange is the first of its epoch."""
        return (number - 1) % self.per_epoch == 0

    def ends_epoch(self, number: int) -> bool:
        """Whether an exchange is the last of its epoch."""
        return number % self.per_epoch == 0

    def part(self, number: int) -> Indices:
        """The public images that an exchange is about, in the order of learning."""
        return self._parts(self.epoch(number))[(number - 1) % self.per_epoch]

    def _parts(self, epoch: int) -> list[Indices]:
        options = self.options
        order = public_order(self.images, self.seed, epoch, options.per_round)
        return exchange_chunks(order, options.public_batch, options.chunk)
