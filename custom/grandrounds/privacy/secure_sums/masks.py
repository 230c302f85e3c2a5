r"""Masks that cancel in a sum.

.. math:: y_u = x_u + PRG(b_u) + \sum_{v > u} PRG(s_{uv}) - \sum_{v < u} PRG(s_{uv})

Bonawitz et al., CCS 2017, section 4; sites are ordered by name. PRG is ChaCha20 (RFC 8439) with nonce and counter 0, so a
seed is for one sum only. Tensors take the stream in the order of their names, little endian.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from grandrounds.errors import MessageError
from grandrounds.privacy.secure_sums.numbers import Words, add, subtract

MASK_SEED_BYTES = 32
STREAM_NONCE = bytes(16)
"""Counter and nonce of the stream."""
STREAM_BYTES = 1 << 38
"""After which the counter of 32 bits would repeat."""


def framed(*parts: bytes) -> bytes:
    """Byte strings after each other, each after its length, so that no two lists have the same bytes.

    Example:
        >>> framed(b"ab", b"") == framed(b"a", b"b")
        False
    """
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def derived(secret: bytes, purpose: str, context: bytes, *parties: str) -> bytes:
    """A key of 32 bytes for one purpose (HKDF-SHA256, RFC 5869, without salt).

    Args:
        secret: that the parties share.
        purpose: of the key.
        context: the digest of the attempt's roster.
        parties: whose key it is, in an order that all agree on.
    """
    info = framed(b"grandrounds-sums/1", purpose.encode(), context, *(name.encode() for name in parties))
    return HKDF(SHA256(), MASK_SEED_BYTES, None, info).derive(secret)


def pair_seed(own: X25519PrivateKey, partner: bytes, context: bytes, site: str, other: str) -> bytes:
    """The seed that two sites share; both find the same one.

    Args:
        own: the site's private key for masks.
        partner: the other's public key, 32 bytes.
        context: the digest of the attempt's roster.
        site: the own name.
        other: the partner's.

    Raises:
        MessageError: if the other's key is none, or of low order.
    """
    return derived(shared_secret(own, partner, other), "mask", context, *sorted((site, other)))


def shared_secret(own: X25519PrivateKey, partner: bytes, other: str) -> bytes:
    """X25519 (RFC 7748).

    Raises:
        MessageError: if the other's key is none, or of low order.
    """
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(partner))
    except ValueError as error:
        raise MessageError(f"the public key of {other} cannot be used") from error


def stream(seed: bytes, like: Mapping[str, Words]) -> dict[str, Words]:
    """A seed's mask for named tensors.

    Raises:
        MessageError: if the seed has not 32 bytes, or the tensors are too large for one stream.
    """
    if len(seed) != MASK_SEED_BYTES:
        raise MessageError(f"a seed has {MASK_SEED_BYTES} bytes, got {len(seed)}")
    if sum(words.nbytes for words in like.values()) > STREAM_BYTES:
        raise MessageError(f"more than {STREAM_BYTES} bytes cannot be masked by one seed")
    generator = Cipher(ChaCha20(seed, STREAM_NONCE), None).encryptor()
    masks: dict[str, Words] = {}
    for name, words in sorted(like.items()):
        masks[name] = np.frombuffer(generator.update(bytes(words.nbytes)), words.dtype).reshape(words.shape)
    return masks


def with_pair_masks(
    words: Mapping[str, Words], seeds: Mapping[str, bytes], site: str, *, remove: bool = False
) -> dict[str, Words]:
    """Add the masks that a site shares with its partners, or take them away.

    Args:
        words: of each tensor.
        seeds: each partner's shared seed.
        site: whose masks they are.
        remove: take them away.

    Raises:
        MessageError: if a seed is unusable, or the site is its own partner.
    """
    if site in seeds:
        raise MessageError(f"{site} cannot be its own partner")
    total = dict(words)
    for partner, seed in seeds.items():
        change = add if (partner > site) != remove else subtract
        total = change(total, stream(seed, words))
    return total


def masked(words: Mapping[str, Words], own_seed: bytes, seeds: Mapping[str, bytes], site: str) -> dict[str, Words]:
    """What a site sends: its words under its own mask and those that it shares.

    Args:
        words: of each tensor.
        own_seed: b_u, 32 bytes.
        seeds: the seed shared with each partner.
        site: the own name.

    Raises:
        MessageError: if there is no partner, or a seed is unusable.
    """
    if not seeds:
        raise MessageError(f"{site} has no partner: its sum would be its own numbers")
    return with_pair_masks(add(words, stream(own_seed, words)), seeds, site)
