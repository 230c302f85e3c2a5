"""Homomorphic encryption: sites send values that the server can add up and not read.

CKKS (Cheon, Kim, Kim & Song, "Homomorphic Encryption for Arithmetic of Approximate Numbers", ASIACRYPT 2017) encrypts
vectors so that sums of ciphertexts decrypt to sums of vectors. The sites share a secret key, the server has the public one.
The server learns nothing of a single site's values; a server that obtains a site's key learns everything. Needs TenSEAL
(``pip install "grandrounds[he]"``).

Nothing is multiplied here, so the scale may be much larger than FLARE's 2^40: the noise of encryption, some 2^14 in units of
the scale, is then below the rounding of float64 for numbers above 1e-3. The price is a smaller range, see ``MAX_ENCODED``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grandrounds.checks import told_as
from grandrounds.errors import ConfigurationError, MessageError

DEGREE = 8192
"""Of the polynomials: half of it are the numbers in a ciphertext. With 140 bits of modulus, 128-bit security."""
MODULUS_BITS = (60, 40, 40)
SCALE = 2.0**56
SLOTS = DEGREE // 2
MAX_ENCODED, MOST_SITES = 2.0**32, 2**10
"""Of one site's absolute values, and in a sum: their product with the scale is below half of a ciphertext's 100 bits."""


class Keys(NamedTuple):
    """Serialised contexts.

    Attributes:
        secret: for the sites alone: encrypts and decrypts.
        public: also for the server; adds.
    """

    secret: bytes
    public: bytes


def make_keys() -> Keys:
    """Draw keys, with the parameters that FLARE provisions: degree 8192, and moduli of 60, 40 and 40 bits.

    Raises:
        ConfigurationError: if TenSEAL is not installed.
    """
    tenseal = _tenseal()
    context = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=DEGREE, coeff_mod_bit_sizes=list(MODULUS_BITS)
    )
    return Keys(context.serialize(save_secret_key=True), context.serialize(save_secret_key=False))


def is_private(context: bytes) -> bool:
    """Whether a serialised context holds a secret key.

    Raises:
        ConfigurationError: if TenSEAL is not installed or ``context`` is not a context.
    """
    return bool(_open(context).is_private())


def encrypt(values: Tensor, context: bytes) -> list[bytes]:
    """Encrypt a vector.

    Args:
        values: a vector, which is encrypted in float64.
        context: either of the keys.

    Returns:
        Ciphertexts of 4096 numbers each, in the order of the values; the last may hold fewer.

    Raises:
        ConfigurationError: if TenSEAL is not installed, or ``context`` is not a context of these parameters.
        MessageError: if a value is not finite, or above ``MAX_ENCODED``.
    """
    tenseal, opened = _tenseal(), _open(context)
    if not bool((values.abs() <= MAX_ENCODED).all()):
        raise MessageError(
            f"values to encrypt must be finite and at most {MAX_ENCODED:.0f}, the range of the encryption"
        )
    where = "the encryption context has other parameters than FLARE provisions"
    with told_as(ConfigurationError, ValueError, where=where):
        parts = torch.split(values.detach().double(), SLOTS)
        return [tenseal.ckks_vector(opened, part.tolist(), SCALE).serialize() for part in parts]


def add_encrypted(first: Sequence[bytes], second: Sequence[bytes], context: bytes, name: str) -> list[bytes]:
    """Add encrypted vectors without decrypting them.

    Args:
        first: ciphertexts.
        second: as many, of as many numbers each.
        context: the public key.
        name: what is added, for errors.

    Returns:
        Ciphertexts of the sum, as many.

    Raises:
        ConfigurationError: if the context holds a secret key, which does not belong on the server.
        MessageError: if the ciphertexts differ in number, length or scale, or one is damaged.
    """
    opened = _open(context)
    if opened.is_private():
        raise ConfigurationError("the context holds a secret key; the server must have the public one alone")
    with told_as(MessageError, ValueError, where=f"{name}: ciphertexts cannot be added"):
        pairs = zip(first, second, strict=True)
        return [(_vector(opened, one) + _vector(opened, other)).serialize() for one, other in pairs]


def require_encrypted(ciphertexts: Sequence[bytes], context: bytes, numbers: int, name: str) -> None:
    """Check that ciphertexts hold this many numbers; the numbers cannot be seen.

    Args:
        ciphertexts: as :func:`encrypt` makes them.
        context: either of the keys.
        numbers: how many are expected.
        name: for errors.

    Raises:
        MessageError: if a ciphertext is damaged, or the number is another.
    """
    opened = _open(context)
    found = [_vector(opened, part).size() for part in ciphertexts]
    expected = [min(SLOTS, numbers - start) for start in range(0, numbers, SLOTS)]
    if found != expected:
        raise MessageError(f"{name}: expected ciphertexts of {expected} numbers, got {found}")


def decrypt(ciphertexts: Sequence[bytes], context: bytes) -> Tensor:
    """Decrypt a vector or a sum of vectors.

    Returns:
        A vector, float64. Each number is off by less than 1e-11 and 1e-14 of the largest in its ciphertext together.

    Raises:
        ConfigurationError: if the context holds no secret key.
        MessageError: if a ciphertext is damaged.
    """
    opened = _open(context)
    if not opened.is_private():
        raise ConfigurationError("the context holds no secret key; decryption is for the sites")
    numbers = [number for part in ciphertexts for number in _vector(opened, part).decrypt()]
    return torch.tensor(numbers, dtype=torch.float64)


def _vector(context: Any, ciphertext: bytes) -> Any:
    # TenSEAL raises several kinds on what is not a ciphertext.
    with told_as(MessageError, Exception, where="a ciphertext is damaged"):
        return _tenseal().ckks_vector_from(context, ciphertext)


def _open(context: bytes) -> Any:
    tenseal = _tenseal()
    # TenSEAL raises several kinds on what is not a context.
    with told_as(ConfigurationError, Exception, where="the encryption context cannot be read"):
        return tenseal.context_from(context)


def _tenseal() -> Any:
    try:
        return importlib.import_module("tenseal")
    except ImportError as error:
        raise ConfigurationError('encryption needs TenSEAL; install it with pip install "grandrounds[he]"') from error
