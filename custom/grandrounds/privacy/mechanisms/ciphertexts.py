"""Homomorphic encryption: sites send values that the server can add up and not read.

CKKS (Cheon, Kim, Kim & Song, "Homomorphic Encryption for Arithmetic of Approximate Numbers", ASIACRYPT 2017) encrypts
vectors so that sums of ciphertexts decrypt to sums of vectors. The sites share a secret key, the server has the public one.
The server learns nothing of a single site's values; a server that obtains a site's key learns everything. Needs TenSEAL
(``pip install "grandrounds[he]"``).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError, MessageError

DEGREE = 8192
"""Of the polynomials: half of it are the numbers in a ciphertext. With 140 bits of modulus, 128-bit security."""
MODULUS_BITS = (60, 40, 40)
SCALE = 2.0**40
SLOTS = DEGREE // 2
CIPHER_WORD = np.dtype("<i8")


class Keys(NamedTuple):
    """Serialised contexts.

    Attributes:
        secret: for the sites alone: encrypts and decrypts.
        public: also for the server; adds.
    """

    secret: bytes
    public: bytes


def make_keys() -> Keys:
    """Draw keys, with the parameters that FLARE provisions: degree 8192, moduli of 60, 40 and 40 bits, scale 2^40.

    Raises:
        ConfigurationError: if TenSEAL is not installed.
    """
    tenseal = _tenseal()
    context = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=DEGREE, coeff_mod_bit_sizes=list(MODULUS_BITS)
    )
    context.global_scale = SCALE
    return Keys(context.serialize(save_secret_key=True), context.serialize(save_secret_key=False))


def is_private(context: bytes) -> bool:
    """Whether a serialised context holds a secret key.

    Raises:
        ConfigurationError: if TenSEAL is not installed or ``context`` is not a context.
    """
    return bool(_open(context).is_private())


def encrypt(values: Tensor, context: bytes) -> Tensor:
    """Encrypt values.

    Args:
        values: of any shape.
        context: either of the keys.

    Returns:
        Ciphertexts of 4096 numbers each, in the order of the values; the last may hold fewer. See :func:`pack`.

    Raises:
        ConfigurationError: if TenSEAL is not installed or ``context`` is not a context.
    """
    tenseal, opened = _tenseal(), _open(context)
    numbers = values.detach().double().flatten().tolist()
    parts = [numbers[start : start + SLOTS] for start in range(0, len(numbers), SLOTS)]
    return pack([tenseal.ckks_vector(opened, part).serialize() for part in parts])


def add_encrypted(packed: Sequence[Tensor], context: bytes, name: str) -> Tensor:
    """Add up encrypted values without decrypting them.

    Args:
        packed: ciphertexts of each site, in the natural order of the sites.
        context: the public key.
        name: what is added, for errors.

    Returns:
        Ciphertexts of the sum: as many, and as large, as those of one site.

    Raises:
        ConfigurationError: if the context holds a secret key, which does not belong on the server.
        MessageError: if there are no ciphertexts, the sites' differ in number or length, or one is damaged.
    """
    opened = _open(context)
    if opened.is_private():
        raise ConfigurationError("the context holds a secret key; the server must have the public one alone")
    sites = [unpack(one, name) for one in packed]
    if not sites or len({len(own) for own in sites}) != 1:
        raise MessageError(f"{name} must have equal numbers of ciphertexts, got {[len(own) for own in sites]}")
    return pack([_sum([_vector(opened, part) for part in parts]).serialize() for parts in zip(*sites, strict=True)])


def require_encrypted(packed: Tensor, context: bytes, numbers: int, name: str) -> None:
    """Check that ciphertexts hold this many numbers; the numbers cannot be seen.

    Args:
        packed: as :func:`encrypt` makes them.
        context: either of the keys.
        numbers: how many are expected.
        name: for errors.

    Raises:
        MessageError: if a ciphertext is damaged, or the number is another.
    """
    opened = _open(context)
    found = [_vector(opened, part).size() for part in unpack(packed, name)]
    expected = [min(SLOTS, numbers - start) for start in range(0, numbers, SLOTS)]
    if found != expected:
        raise MessageError(f"{name}: expected ciphertexts of {expected} numbers, got {found}")


def decrypt(packed: Tensor, context: bytes, shape: Sequence[int], name: str) -> Tensor:
    """Decrypt values or a sum of values.

    Args:
        packed: as :func:`encrypt` or :func:`add_encrypted` makes them.
        context: the secret key.
        shape: of the values.
        name: for errors.

    Returns:
        Values of that shape, float64, off by less than 1e-6 for sums of probabilities.

    Raises:
        ConfigurationError: if the context holds no secret key.
        MessageError: if the number of values is another, or a ciphertext is damaged.
    """
    opened = _open(context)
    if not opened.is_private():
        raise ConfigurationError("the context holds no secret key; decryption is for the sites")
    numbers = [number for part in unpack(packed, name) for number in _vector(opened, part).decrypt()]
    if len(numbers) != int(np.prod(shape)):
        raise MessageError(f"{name} holds {len(numbers)} numbers, expected {' x '.join(map(str, shape))}")
    return torch.tensor(numbers, dtype=torch.float64).reshape(*shape)


def pack(ciphertexts: Sequence[bytes]) -> Tensor:
    """Ciphertexts as one tensor.

    Returns:
        A uint8 vector: the number of ciphertexts and their lengths, each in eight bytes, then the ciphertexts.

    Example:
        >>> pack([b"ab", b"c"]).tolist()[::8]
        [2, 2, 1, 97]
    """
    header = np.array([len(ciphertexts), *map(len, ciphertexts)], CIPHER_WORD).tobytes()
    return torch.from_numpy(np.frombuffer(header + b"".join(ciphertexts), np.uint8).copy())


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
        raise MessageError(f"{name}: the ciphertexts are damaged: {count} ciphertexts in {len(content)} bytes")
    lengths = np.frombuffer(content, CIPHER_WORD, count, CIPHER_WORD.itemsize).tolist()
    ends = list(accumulate(lengths, initial=CIPHER_WORD.itemsize * (1 + count)))
    if min(lengths) < 1 or ends[-1] != len(content):
        raise MessageError(f"{name}: the ciphertexts are damaged: {ends[-1]} bytes announced, got {len(content)}")
    return [content[start:end] for start, end in pairwise(ends)]


def _sum(vectors: Sequence[Any]) -> Any:
    total = vectors[0]
    for vector in vectors[1:]:
        if vector.size() != total.size():
            raise MessageError(f"ciphertexts must have equal lengths, got {vector.size()} and {total.size()}")
        try:
            total = total + vector
        except ValueError as error:
            raise MessageError(f"ciphertexts cannot be added: {error}") from error
    return total


def _vector(context: Any, ciphertext: bytes) -> Any:
    try:
        return _tenseal().ckks_vector_from(context, ciphertext)
    except Exception as error:  # TenSEAL raises several kinds on what is not a ciphertext
        raise MessageError(f"a ciphertext is damaged: {error}") from error


def _open(context: bytes) -> Any:
    tenseal = _tenseal()
    try:
        return tenseal.context_from(context)
    except Exception as error:  # TenSEAL raises several kinds on what is not a context
        raise ConfigurationError(f"the encryption context cannot be read: {error}") from error


def _tenseal() -> Any:
    try:
        return importlib.import_module("tenseal")
    except ImportError as error:
        raise ConfigurationError('encryption needs TenSEAL; install it with pip install "grandrounds[he]"') from error
