r"""Shares of a secret, of which any t open it and fewer say nothing (Shamir, Communications of the ACM 22, 1979).

The field is :math:`GF(2^{521} - 1)`. A share is sealed for the one site that it is meant for (ChaCha20-Poly1305, RFC 8439).
"""

from __future__ import annotations

import os
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.privacy.secure_sums.masks import MASK_SEED_BYTES, derived, framed

RandomBytes = Callable[[int], bytes]
PRIME = 2**521 - 1
SHARE_BYTES = 66
BOX_NONCE = bytes(12)
"""A key seals one share only."""


def threshold(sites: int, colluding: int = 1) -> int:
    """t, of how many sites it takes to open a sum: the smallest whole number above half of n + c.

    Args:
        sites: n, of the roster, at least 3.
        colluding: c, hospitals that may work together with the server, 0 to n - 1.

    Raises:
        ConfigurationError: if a value is out of its range.

    Example:
        >>> [threshold(n) for n in (3, 4, 5, 10)]
        [3, 3, 4, 6]
    """
    if sites < 3:
        raise ConfigurationError(f"a sum needs at least 3 sites, got {sites}")
    if not 0 <= colluding < sites:
        raise ConfigurationError(f"colluding must be 0 to {sites - 1}, got {colluding}")
    return (sites + colluding) // 2 + 1


def split(secret: bytes, needed: int, count: int, random_bytes: RandomBytes = os.urandom) -> list[bytes]:
    """Split a secret of 32 bytes.

    Args:
        secret: 32 bytes.
        needed: t, 1 to the count.
        count: of shares; share i (from 1) is the polynomial's value at i.
        random_bytes: where the coefficients come from.

    Returns:
        Shares of 66 bytes each.

    Raises:
        ConfigurationError: if a value is out of its range.
    """
    if len(secret) != MASK_SEED_BYTES:
        raise ConfigurationError(f"a secret has {MASK_SEED_BYTES} bytes, got {len(secret)}")
    if not 1 <= needed <= count:
        raise ConfigurationError(f"needed must be 1 to {count}, got {needed}")
    # 128 bits more than the field has, so that the remainder is uniform but for 2^-128.
    drawn = [int.from_bytes(random_bytes(SHARE_BYTES + 16), "little") % PRIME for _ in range(needed - 1)]
    coefficients = [int.from_bytes(secret, "little"), *drawn]
    shares = []
    for at in range(1, count + 1):
        value = 0
        for coefficient in reversed(coefficients):  # Horner
            value = (value * at + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "little"))
    return shares


def sealed(share: bytes, secret: bytes, context: bytes, sender: str, receiver: str) -> bytes:
    """A share that only its receiver can read.

    Args:
        share: of the sender's secret.
        secret: that the two share (X25519 of their channel keys).
        context: the digest of the attempt's roster.
        sender: its name.
        receiver: the receiver's.
    """
    key = derived(secret, "share", context, sender, receiver)
    return ChaCha20Poly1305(key).encrypt(BOX_NONCE, share, framed(context, sender.encode(), receiver.encode()))


def opened(box: bytes, secret: bytes, context: bytes, sender: str, receiver: str) -> bytes:
    """Open :func:`sealed`.

    Raises:
        MessageError: if it was changed, or sealed for another attempt or party.
    """
    key = derived(secret, "share", context, sender, receiver)
    try:
        return ChaCha20Poly1305(key).decrypt(BOX_NONCE, box, framed(context, sender.encode(), receiver.encode()))
    except InvalidTag as error:
        raise MessageError(f"the share of {sender} for {receiver} was changed, or is of another attempt") from error
