"""Which exchange belongs to which round, what it is about, and how much local training follows.

Round 1 trains locally and publishes; each later round learns from the previous exchange, trains locally when an epoch ends,
and publishes again. The last round publishes nothing. So E collaborative epochs of K exchanges take K E + 1 rounds.

MDH-FL (arXiv 2308.00155) exchanges once per epoch over the whole public set; RHFL (Fang & Ye, CVPR 2022) after every batch.
MDH-FL sets its local epochs to (private images) / (public images) = 0.139, RHFL's code to the inverse, rounded down: 7 at
MDH-FL's sizes. Here they are any positive number; a fraction is a part of the batches of one pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from grandrounds.errors import ConfigurationError
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.seeding import numpy_generator

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Exchanges:
    """The exchanges of a run on a public set of ``images`` images.

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
        """Collaborative epochs in a number of rounds.

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


def public_order(images: int, seed: int, round_number: int, per_round: int | None = None) -> Indices:
    """The public images of a round, in the order in which every site learns from them.

    Args:
        images: size of the public set.
        seed: of the run; all sites have the same.
        round_number: which round.
        per_round: how many of the images, drawn anew in each round; None is all.
    """
    return numpy_generator(seed, "public order", round_number).permutation(images)[:per_round].astype(np.int64)


def exchange_chunks(order: Indices, batch_size: int, chunk: int | None = None) -> list[Indices]:
    """Cut a round's public images into the parts whose soft labels are exchanged at once.

    Args:
        order: the round's images.
        batch_size: images in a batch of the alignment.
        chunk: images per exchange; None is all of them (MDH-FL), ``batch_size`` is RHFL's exchange after every batch. A last
            part without a whole batch is left out.

    Raises:
        ConfigurationError: if the images or a chunk do not make a batch.
    """
    size = len(order) if chunk is None else chunk
    if size < batch_size or len(order) < batch_size:
        raise ConfigurationError(
            f"the public set gives {min(size, len(order))} images per exchange, which make no batch of {batch_size}; "
            "add images or lower the batch size"
        )
    parts = (order[start : start + size] for start in range(0, len(order), size))
    return [part for part in parts if len(part) >= batch_size]


def whole_batches(order: Indices, batch_size: int) -> list[Indices]:
    """Cut images into batches; the rest that makes no whole batch is left out, as batch norm suffers from small ones.

    Example:
        >>> [batch.tolist() for batch in whole_batches(np.arange(5), 2)]
        [[0, 1], [2, 3]]
    """
    return [order[end - batch_size : end] for end in range(batch_size, len(order) + 1, batch_size)]


def local_batch_count(images: int, batch_size: int, epochs: float) -> int:
    """How many private batches follow an alignment.

    Args:
        images: the site's training images.
        batch_size: images in a batch.
        epochs: passes over them, above zero; 0.139 is the paper's, as part of one pass.

    Returns:
        ``epochs`` times the whole batches of a pass, rounded, at least one.

    Raises:
        ConfigurationError: if the images do not make a batch.

    Example:
        >>> [local_batch_count(3670, 16, epochs) for epochs in (1, 3670 / 26379, 7)]
        [229, 32, 1603]
    """
    if images < batch_size:
        raise ConfigurationError(
            f"{images} training images make no batch of {batch_size}; lower the batch size or add images"
        )
    return max(1, round(epochs * (images // batch_size)))


def local_batches(rows: Indices, batch_size: int, epochs: float, generator: np.random.Generator) -> Iterator[Indices]:
    """The private batches of a round: fresh shuffles of the site's images, whole batches only.

    Args and errors as for :func:`local_batch_count`; of the last pass, if it is a fraction, the first batches are taken.

    Example:
        >>> batches = local_batches(np.arange(7), 3, 1.5, np.random.Generator(np.random.Philox(1)))
        >>> [len(batch) for batch in batches]
        [3, 3, 3]
    """
    count = local_batch_count(len(rows), batch_size, epochs)
    each = len(rows) // batch_size
    passes = (whole_batches(generator.permutation(rows), batch_size) for _ in range(-(-count // each)))
    return islice(chain.from_iterable(passes), count)


def label_trust(epoch: int, epochs: int, ratio: float = 10.0) -> float:
    r"""How far RHFL+ trusts a model's own predictions beside the labels.

    .. math:: w = \frac{t}{\rho E + t}

    Args:
        epoch: :math:`t`, collaborative epochs before this one, at least zero.
        epochs: :math:`E`, collaborative epochs in all, at least one.
        ratio: :math:`\rho`, above zero; 10 in the code.

    Returns:
        In [0, 1); zero at first.

    Example:
        >>> label_trust(0, 40), label_trust(40, 40)  # 40 / 440
        (0.0, 0.09090909090909091)
    """
    return epoch / (ratio * epochs + epoch)
