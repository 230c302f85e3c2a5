"""A bank of noisy embeddings, with which other sites align between two communications, and how it travels.

Its rows are clipped, noisy, in random order and of a fixed number. It contains no labels, files or order of training.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.data.images.tensors import to_device
from grandrounds.errors import MessageError
from grandrounds.methods.fed_align_cl.noise import noisy_embeddings
from grandrounds.methods.fed_align_cl.options import BankRows, EmbeddingNoiseOptions
from grandrounds.privacy.mechanisms.gaussian import RandomBytes

BANK, EMBEDDINGS, DISCRIMINATOR = "bank", "embeddings", "discriminator"
BATCH_SIZE, BATCH_SIZES = "batch_size", "batch_sizes"
BANK_SEPARATOR = "/"
MAX_BATCH_SIZE = 65_536
"""The maximum batch size that a site may report: the others draw as many rows in every iteration."""
MAX_EMBEDDING = 1e6
"""The largest value of a bank: the squares of larger ones could stop the training of the sites that receive it."""


def pack_banks(states: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Join the states of several sites, given by site.

    Example:
        >>> list(pack_banks({"site-1": {"layers.0.weight": torch.zeros(1)}}))
        ['site-1/layers.0.weight']
    """
    return {f"{site}{BANK_SEPARATOR}{name}": value for site, state in states.items() for name, value in state.items()}


def unpack_banks(joined: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Undo :func:`pack_banks`.

    Example:
        >>> unpack_banks({"site-1/layers.0.weight": torch.zeros(1)})
        {'site-1': {'layers.0.weight': tensor([0.])}}
    """
    states: dict[str, dict[str, Tensor]] = {}
    for key, value in joined.items():
        site, _, name = key.rpartition(BANK_SEPARATOR)
        states.setdefault(site, {})[name] = value
    return states


def bank_size(pace: int, batch_size: int, maximum: int = 256) -> int:
    r"""The number of embeddings in a bank: :math:`\min(2 \tau B, 256)`.

    Args:
        pace: :math:`\tau`, iterations between two communications.
        batch_size: :math:`B` of the site that makes it.
        maximum: of the size.

    Example:
        >>> bank_size(40, 8), bank_size(10, 2)
        (256, 40)
    """
    return min(2 * pace * batch_size, maximum)


def make_bank(
    embeddings: Tensor,
    size: int,
    options: EmbeddingNoiseOptions,
    random_bytes: RandomBytes = os.urandom,
    rows: BankRows = "padded",
) -> Tensor:
    """Make a bank.

    Where there are too few embeddings, rows are repeated as they are, noise included: another noise on the same
    embedding would reveal more about it, and rows of pure noise would be learnt from.

    Args:
        embeddings: shape ``(samples, width)``, at least one; of more than ``size`` the first are taken.
        size: rows of the bank.
        options: clipping and noise.
        random_bytes: of the noise and the order; see :func:`~grandrounds.methods.fed_align_cl.noise.noisy_embeddings`.
        rows: ``padded``, or ``distinct`` for a smaller bank where there are too few embeddings.

    Returns:
        Shape ``(size, width)``, float32, on the CPU, without a graph.
    """
    noisy = noisy_embeddings(embeddings.detach()[:size], options, random_bytes).float().cpu()
    size = min(size, len(noisy)) if rows == "distinct" else size
    repeated = noisy.repeat(math.ceil(size / len(noisy)), 1)[:size]
    generator = np.random.default_rng(int.from_bytes(random_bytes(16), "big"))
    return repeated[torch.from_numpy(generator.permutation(size))]


def upcoming_rows(order: NDArray[np.integer], start: int, size: int) -> NDArray[np.integer]:
    """The images that an epoch trains on next, from whose embeddings a bank is made; after the last comes the first.

    Args:
        order: the epoch's images in their order.
        start: how many of them have been trained on.
        size: how many are wanted; of a shorter order, each once.

    Example:
        >>> upcoming_rows(np.array([4, 7, 1, 9]), start=3, size=2).tolist()
        [9, 4]
    """
    return np.roll(order, -start)[:size]


def require_bank(bank: Tensor, size: int, width: int, name: str) -> None:
    """Check a bank from another site.

    Args:
        bank: to be checked.
        size: rows that were agreed.
        width: features of an embedding here.
        name: for errors, for example ``"bank of site-2"``.

    Raises:
        MessageError: if the shape or dtype is another, or a value is not finite or beyond ``MAX_EMBEDDING``.
    """
    if bank.dtype != torch.float32 or tuple(bank.shape) != (size, width):
        raise MessageError(
            f"{name}: expected torch.float32 of shape {(size, width)}, got {bank.dtype} of shape {tuple(bank.shape)}; do "
            "all sites have the same backbone?"
        )
    if not bool(torch.isfinite(bank).all()):
        raise MessageError(f"{name} has a value that is NaN or infinite")
    if len(bank) and float(bank.abs().max()) > MAX_EMBEDDING:
        raise MessageError(f"{name} has a value beyond {MAX_EMBEDDING:g}")


def draw_rows(bank: Tensor, count: int, generator: np.random.Generator) -> Tensor:
    """A mini-batch of a bank, drawn uniformly, shape ``(count, width)``; no row twice unless the bank is smaller."""
    rows = generator.choice(len(bank), count, replace=count > len(bank))
    return bank[to_device(rows, bank.device)]
