"""Several strings of bytes as one tensor, which a message can carry."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from grandrounds.errors import MessageError

CIPHER_WORD = np.dtype("<i8")


def pack(parts: Sequence[bytes]) -> Tensor:
    """Ciphertexts, and what travels with them, as one tensor.

    Returns:
        A uint8 vector: the number of parts and their lengths, each in eight bytes, then the parts.

    Example:
        >>> pack([b"ab", b"c"]).tolist()[::8]
        [2, 2, 1, 97]
    """
    header = np.array([len(parts), *map(len, parts)], CIPHER_WORD).tobytes()
    return torch.from_numpy(np.frombuffer(header + b"".join(parts), np.uint8).copy())


def unpack(packed: Tensor, name: str) -> list[bytes]:
    """Undo :func:`pack`.

    Args:
        packed: a vector of bytes.
        name: for errors.

    Raises:
        MessageError: if it is not such a tensor, or its lengths do not fit.
    """
    if packed.dtype != torch.uint8 or packed.dim() != 1:
        raise MessageError(
            f"{name}: expected a vector of torch.uint8, got {packed.dtype} of shape {tuple(packed.shape)}"
        )
    content = packed.cpu().numpy().tobytes()
    words = len(content) // CIPHER_WORD.itemsize
    count = int(np.frombuffer(content, CIPHER_WORD, 1)[0]) if words else 0
    if not 1 <= count < words:
        raise MessageError(f"{name}: the ciphertexts are damaged: {count} parts in {len(content)} bytes")
    lengths = np.frombuffer(content, CIPHER_WORD, count, CIPHER_WORD.itemsize).tolist()
    ends = list(accumulate(lengths, initial=CIPHER_WORD.itemsize * (1 + count)))
    if min(lengths) < 1 or ends[-1] != len(content):
        raise MessageError(f"{name}: the ciphertexts are damaged: {ends[-1]} bytes announced, got {len(content)}")
    return [content[start:end] for start, end in pairwise(ends)]
