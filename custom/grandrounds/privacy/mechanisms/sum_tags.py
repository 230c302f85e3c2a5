r"""Tags by which a site sees that a decrypted sum is that of the contributions it is said to be of.

CKKS ciphertexts are malleable: who has the public key can add numbers, multiply by any, and add a ciphertext twice. So each
contributor puts four tags behind every block of numbers that it encrypts. With a secret :math:`K` that the sites share and
the adding server lacks, a block :math:`x` of author :math:`i` gets

.. math:: t_i = \langle r, x_i \rangle + o_i, \qquad r = \mathrm{PRF}_K(\text{label}, \text{block}), \quad
    o_i = \mathrm{PRF}_K(\text{label}, i, \text{block}).

Tags add up as the numbers do. A sum :math:`x` of authors :math:`I` is genuine if its tags are
:math:`\langle r, x \rangle + \sum_{i \in I} o_i` within the error of the encryption. Every other linear combination, a
product, a block in another place, and a number that was added differ by an amount that is as good as random to the server.

This is a linear MAC with one-time offsets (Carter & Wegman, JCSS 1981; Agrawal & Boneh, "Homomorphic MACs", ACNS 2009;
Catalano & Fiore, EUROCRYPT 2013), over reals in place of a finite field, because CKKS computes with an error. A change below
about ``TOLERANCE`` is not seen; one that is ``f`` times as large passes with a probability of about :math:`f^{-4}`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.privacy.mechanisms.ciphertexts import SLOTS

TAGS = 4
"""Behind each block of numbers, with which it fills a ciphertext."""
BLOCK = SLOTS - TAGS
LARGEST_OFFSET = 2.0**10
"""Bound on an author's offsets."""
TOLERANCE, RELATIVE_TOLERANCE = 5e-11, 2e-13
"""Of a tag; and of the largest number in its block."""
DOMAIN = b"grandrounds: tags of sums, version 1"


def tag_secret(shared: bytes) -> bytes:
    """The secret of the tags, from one that the sites share for another purpose; 32 bytes."""
    return hashlib.sha256(DOMAIN + shared).digest()


def tagged_length(numbers: int) -> int:
    """How many numbers are encrypted in place of so many.

    Example:
        >>> tagged_length(3), tagged_length(4092), tagged_length(4093)
        (7, 4096, 4101)
    """
    return numbers + TAGS * max(1, math.ceil(numbers / BLOCK))


def with_tags(values: Tensor, secret: bytes, label: str, author: str) -> Tensor:
    """A contribution with its tags.

    Args:
        values: a vector, float64.
        secret: of the sites.
        label: of the sum: no other sum has the same.
        author: of the contribution: none of its own, or of another site, has the same for this label.

    Returns:
        A vector: each block of ``BLOCK`` numbers, the last may have fewer, and its tags.
    """
    parts = []
    offsets = _offsets(secret, label, author, _blocks(len(values)))
    for number, block in enumerate(_split(values)):
        parts += [block, _weights(secret, label, number, len(block)) @ block + offsets[number]]
    return torch.cat(parts)


def require_genuine(tagged: Tensor, secret: bytes, label: str, authors: Iterable[str], name: str) -> Tensor:
    """The numbers of a decrypted sum.

    Args:
        tagged: the sum of what :func:`with_tags` has made, as decrypted.
        secret: of the sites.
        label: of the sum.
        authors: of its contributions.
        name: of the sum, for errors.

    Raises:
        MessageError: if it is not the sum of exactly one contribution of each author, or was changed.
    """
    blocks = torch.split(tagged, SLOTS)
    expected = torch.stack([_offsets(secret, label, author, len(blocks)) for author in authors]).sum(dim=0)
    for number, part in enumerate(blocks):
        block, tags = part[:-TAGS], part[-TAGS:]
        wrong = (_weights(secret, label, number, len(block)) @ block + expected[number] - tags).abs().max()
        largest = part.abs().max()
        # Also false for what is no number.
        if not bool(wrong <= TOLERANCE + RELATIVE_TOLERANCE * largest):
            raise MessageError(
                f"{name} is not the sum of what its sites have encrypted for it: a contribution is missing, counted twice, "
                "from another round or of another key, or the sum was changed on its way"
            )
    return torch.cat([part[:-TAGS] for part in blocks])


def _blocks(numbers: int) -> int:
    return max(1, math.ceil(numbers / BLOCK))


def _split(values: Tensor) -> tuple[Tensor, ...]:
    return torch.split(values, BLOCK) if len(values) else (values,)


def _weights(secret: bytes, label: str, block: int, numbers: int) -> Tensor:
    """Of the numbers of a block in its tags, shape ``(TAGS, numbers)``; a tag is about as large as the numbers."""
    drawn = _uniform(secret, [label, "weights", block], TAGS * numbers, "<u4") / math.sqrt(SLOTS)
    return torch.from_numpy(drawn.reshape(TAGS, numbers))


def _offsets(secret: bytes, label: str, author: str, blocks: int) -> Tensor:
    """An author's, shape ``(blocks, TAGS)``."""
    drawn = _uniform(secret, [label, "offsets", author], blocks * TAGS, "<u8") * LARGEST_OFFSET
    return torch.from_numpy(drawn.reshape(blocks, TAGS))


def _uniform(secret: bytes, purpose: list[str | int], numbers: int, word: str) -> np.ndarray:
    """Numbers in [-1, 1) that are random to who lacks the secret: SHAKE128, keyed by a prefix."""
    kind = np.dtype(word)
    stream = hashlib.shake_128(secret + json.dumps(purpose).encode()).digest(numbers * kind.itemsize)
    return np.frombuffer(stream, kind) * 2.0 ** (1 - 8 * kind.itemsize) - 1.0
