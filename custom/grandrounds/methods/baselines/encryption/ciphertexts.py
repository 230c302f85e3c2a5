"""Where the keys of encrypted rows are.

They are the files that FLARE's ``HEBuilder`` puts into startup kits: ``client_context.tenseal`` for a site, which holds the
secret key, ``server_context.tenseal`` for the server. A simulation finds them beside the sites' data.

Rows that the server can add up and not read.

CKKS (Cheon, Kim, Kim & Song, "Homomorphic Encryption for Arithmetic of Approximate Numbers", ASIACRYPT 2017) encrypts
vectors so that sums of ciphertexts decrypt to sums of vectors. The sites share a secret key, the server has the public one.
A sum is what the server has to make, so it learns nothing of a single site's rows; a server that a site helps with its key
learns everything. Needs TenSEAL (``pip install "grandrounds[he]"``).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.paths import SERVER
from grandrounds.files import replacing

SITE_KEY, SERVER_KEY = "client_context.tenseal", "server_context.tenseal"


def write_keys(folder: Path, sites: Iterable[str]) -> None:
    """Draw keys for a simulation: the secret one into each site's folder, the public one into the server's.

    Args:
        folder: of the sites.
        sites: their names.

    Raises:
        ConfigurationError: if TenSEAL is not installed.
    """
    keys = make_keys()
    places = {folder / site / SITE_KEY: keys.secret for site in sites} | {folder / SERVER / SERVER_KEY: keys.public}
    for path, content in places.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(content)


def find_key(folders: Sequence[Path], party: str) -> bytes:
    """The key of a party.

    Args:
        folders: where to look, in this order; in each, a folder of the party comes first.
        party: a site, or ``server``.

    Returns:
        A serialised context.

    Raises:
        ConfigurationError: if there is none, it cannot be read, a site's has no secret key, or the server's has one.
    """
    name = SERVER_KEY if party == SERVER else SITE_KEY
    places = [place for folder in folders for place in (folder / party / name, folder / name)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ConfigurationError(
            f"{party}: encrypted rows need a key; there is none at {', '.join(map(str, places))}. FLARE's HEBuilder puts "
            "one into every startup kit"
        )
    context = found.read_bytes()
    if is_private(context) == (party == SERVER):
        what = "holds the secret key, which belongs to the sites alone" if party == SERVER else "holds no secret key"
        raise ConfigurationError(f"{found} {what}; provision the kits again")
    return context


DEGREE = 8192
"""Of the polynomials: half of it are the numbers in a ciphertext. With 140 bits of modulus, 128-bit security."""

MODULUS_BITS = (60, 40, 40)
SCALE = 2.0**40
SLOTS = DEGREE // 2


class Keys(NamedTuple):
    """Serialised contexts.

    Attributes:
        secret: for the sites alone: encrypts and decrypts.
        public: for the server as well: adds.
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
        ConfigurationError: if TenSEAL is not installed or ``context`` is no context.
    """
    return bool(_open(context).is_private())


def encrypt_rows(rows: Tensor, context: bytes) -> list[bytes]:
    """Encrypt rows.

    Args:
        rows: probabilities or logits, shape ``(images, classes)``.
        context: either of the keys.

    Returns:
        Ciphertexts of 4096 numbers each, row after row; the last may hold fewer.

    Raises:
        ConfigurationError: if TenSEAL is not installed or ``context`` is no context.
    """
    tenseal, opened = _tenseal(), _open(context)
    numbers = rows.detach().double().flatten().tolist()
    parts = [numbers[start : start + SLOTS] for start in range(0, len(numbers), SLOTS)]
    return [tenseal.ckks_vector(opened, part).serialize() for part in parts]


def add_encrypted(rows: Sequence[Sequence[bytes]], context: bytes) -> list[bytes]:
    """Add up encrypted rows without decrypting them.

    Args:
        rows: ciphertexts of each site, in the natural order of the sites.
        context: the public key.

    Returns:
        Ciphertexts of the sum: as many, and as large, as those of one site.

    Raises:
        ConfigurationError: if the context holds a secret key, which does not belong where sums are made.
        MessageError: if there are no rows, the sites' ciphertexts differ in number or length, or one is damaged.
    """
    opened = _open(context)
    if opened.is_private():
        raise ConfigurationError("the context holds a secret key; the server must have the public one alone")
    if not rows or len({len(own) for own in rows}) != 1:
        raise MessageError(f"encrypted rows must have equal numbers of ciphertexts, got {[len(own) for own in rows]}")
    return [_sum([_vector(opened, part) for part in parts]).serialize() for parts in zip(*rows, strict=True)]


def require_encrypted(ciphertexts: Sequence[bytes], context: bytes, numbers: int, name: str) -> None:
    """Check that ciphertexts hold so many numbers; what the numbers are cannot be seen.

    Args:
        ciphertexts: as :func:`encrypt_rows` makes them.
        context: either of the keys.
        numbers: how many are expected.
        name: how an error calls them.

    Raises:
        MessageError: if a ciphertext is damaged, or the number is another.
    """
    opened = _open(context)
    found = [_vector(opened, part).size() for part in ciphertexts]
    expected = [min(SLOTS, numbers - start) for start in range(0, numbers, SLOTS)]
    if found != expected:
        raise MessageError(f"{name}: expected ciphertexts of {expected} numbers, got {found}")


def decrypt_sum(ciphertexts: Sequence[bytes], context: bytes, images: int, classes: int) -> Tensor:
    """Decrypt rows or a sum of rows.

    Args:
        ciphertexts: as :func:`add_encrypted` makes them.
        context: the secret key.
        images: number of public images.
        classes: number of classes.

    Returns:
        Shape ``(images, classes)``, float64, off by less than 1e-6 for sums of probabilities.

    Raises:
        ConfigurationError: if the context holds no secret key.
        MessageError: if the number of values is another, or a ciphertext is damaged.
    """
    opened = _open(context)
    if not opened.is_private():
        raise ConfigurationError("the context holds no secret key; decryption is for the sites")
    numbers = [number for part in ciphertexts for number in _vector(opened, part).decrypt()]
    if len(numbers) != images * classes:
        raise MessageError(f"the encrypted sum holds {len(numbers)} numbers, expected {images} x {classes}")
    return torch.tensor(numbers, dtype=torch.float64).reshape(images, classes)


def _sum(vectors: Sequence[Any]) -> Any:
    total = vectors[0]
    for vector in vectors[1:]:
        if vector.size() != total.size():
            raise MessageError(f"encrypted rows must have equal lengths, got {vector.size()} and {total.size()}")
        total = total + vector
    return total


def _vector(context: Any, ciphertext: bytes) -> Any:
    try:
        return _tenseal().ckks_vector_from(context, ciphertext)
    except Exception as error:  # TenSEAL raises several kinds on what is no ciphertext
        raise MessageError(f"a ciphertext of the rows is damaged: {error}") from error


def _open(context: bytes) -> Any:
    tenseal = _tenseal()
    try:
        return tenseal.context_from(context)
    except Exception as error:  # TenSEAL raises several kinds on what is no context
        raise ConfigurationError(f"the encryption context cannot be read: {error}") from error


def _tenseal() -> Any:
    try:
        return importlib.import_module("tenseal")
    except ImportError as error:
        raise ConfigurationError('encryption needs TenSEAL; install it with pip install "grandrounds[he]"') from error
