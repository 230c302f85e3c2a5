"""Encrypted rows on the wire, and the server's part of an exchange that it cannot read.

Ciphertexts travel as one vector of bytes. The server checks that they are as many numbers as they must be; that they are
distributions only the sites can see, in the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.methods.baselines.encryption.ciphertexts import add_encrypted, decrypt_sum, require_encrypted
from grandrounds.methods.mutual.contributions import Contribution, RowSum, usable
from grandrounds.methods.mutual.exchange import RowExchange, RowMessage
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.methods.mutual.soft_labels import require_soft_labels

WORD = np.dtype("<i8")


def pack(ciphertexts: Sequence[bytes]) -> Tensor:
    """Ciphertexts as one tensor.

    Returns:
        A uint8 vector: the number of ciphertexts and their lengths, each in eight bytes, then the ciphertexts.

    Example:
        >>> pack([b"ab", b"c"]).tolist()[::8]
        [2, 2, 1, 97]
    """
    header = np.array([len(ciphertexts), *map(len, ciphertexts)], WORD).tobytes()
    return torch.from_numpy(np.frombuffer(header + b"".join(ciphertexts), np.uint8).copy())


def unpack(packed: Tensor, name: str) -> list[bytes]:
    """Ciphertexts from what :func:`pack` makes.

    Args:
        packed: a vector of bytes.
        name: how an error calls it.

    Raises:
        MessageError: if it is none, or its lengths do not fit.
    """
    if packed.dtype != torch.uint8 or packed.dim() != 1:
        raise MessageError(
            f"{name}: expected a vector of torch.uint8, got {packed.dtype} of shape {tuple(packed.shape)}"
        )
    content = packed.cpu().numpy().tobytes()
    whole = len(content) // WORD.itemsize
    count = int(np.frombuffer(content, WORD, 1)[0]) if whole else 0
    if not 1 <= count < whole:
        raise MessageError(f"{name}: the encrypted rows are damaged: {count} ciphertexts in {len(content)} bytes")
    lengths = np.frombuffer(content, WORD, count, WORD.itemsize).tolist()
    ends = list(accumulate(lengths, initial=WORD.itemsize * (1 + count)))
    if min(lengths) < 1 or ends[-1] != len(content):
        raise MessageError(f"{name}: the encrypted rows are damaged: {ends[-1]} bytes announced, got {len(content)}")
    return [content[start:end] for start, end in pairwise(ends)]


class EncryptedExchange(RowExchange):
    """The latest encrypted rows of each site, and their sum.

    Args:
        public: digest of the public set that all sites have.
        classes: number of classes.
        options: what is exchanged: probabilities, of equal weights.
        context: the public key.
    """

    def __init__(self, public: str, classes: int, options: ExchangeOptions, context: bytes) -> None:
        super().__init__(public, classes, options)
        self._context = context

    def check(self, site: str, message: RowMessage, number: int, images: int) -> Tensor:
        """Refuse ciphertexts that cannot be added to those of the others, without any other effect.

        Raises:
            MessageError: naming the site, if they are of another exchange or public set, damaged, or of another number of
                values.
        """
        name = self._name_of_current(site, message, number)
        require_encrypted(unpack(message.rows, name), self._context, images * self._classes, name)
        return message.rows

    def total(self, number: int) -> RowSum | None:
        """The encrypted sum after an exchange, packed; None if there are no rows."""
        chosen = usable(self._latest, number, self._options.max_age)
        return _encrypted_sum(chosen, self._context) if chosen else None


def _encrypted_sum(chosen: Mapping[str, Contribution], context: bytes) -> RowSum:
    parts = [unpack(contribution.rows, f"rows of {site}") for site, contribution in chosen.items()]
    rounds = {site: contribution.round for site, contribution in chosen.items()}
    return RowSum(pack(add_encrypted(parts, context)), rounds, dict.fromkeys(chosen, 1.0))


def decrypt_packed_sum(
    packed: Tensor, context: bytes, rounds: Mapping[str, int], weights: Mapping[str, float], images: int, classes: int
) -> RowSum:
    """The sum as a site reads it.

    Args:
        packed: as the server sends it.
        context: the secret key.
        rounds: the contributors, each with the exchange that its rows are from.
        weights: of the contributors: one each.
        images: number of public images.
        classes: number of classes.

    Raises:
        MessageError: if it is damaged, not as large, or no sum of so many distributions; or contributors do not fit.
    """
    name = "the sum of the encrypted rows"
    total = decrypt_sum(unpack(packed, name), context, images, classes)
    require_soft_labels(total, images, classes, name, parties=len(rounds))
    try:
        return RowSum(total, dict(rounds), dict(weights))
    except ValueError as error:
        raise MessageError(str(error)) from error
