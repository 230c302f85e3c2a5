"""Sums of the sites' tensors that the server makes and cannot read, and the keys for them.

A site encrypts named tensors of any shape, in float64, with its name and a one behind them. The server adds up ciphertexts
and joins the names: the roster of the sum. A site decrypts the sum and compares the sum of the ones with the length of the
roster. They differ if a contribution is missing, counts twice, or is of another key.

Keys are the files that FLARE's ``HEBuilder`` puts into startup kits. ``client_context.tenseal`` is a site's and holds the
secret key, ``server_context.tenseal`` is the server's. A simulation has them beside the sites' data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.files import replacing
from grandrounds.ordering import natural_sorted
from grandrounds.privacy.mechanisms.ciphertexts import (
    MOST_SITES,
    add_encrypted,
    decrypt,
    encrypt,
    is_private,
    make_keys,
    require_encrypted,
)
from grandrounds.protocol.names import SERVER

Shapes = Mapping[str, Sequence[int]]
MIN_SITES = 2
"""In a sum: that of one site's tensors is those tensors."""
COUNT_TOLERANCE = 1e-6
CIPHER_WORD = np.dtype("<i8")
SITE_KEY, SERVER_KEY = "client_context.tenseal", "server_context.tenseal"


def encrypt_tensors(tensors: Mapping[str, Tensor], site: str, key: bytes) -> Tensor:
    """A site's contribution to a sum.

    Args:
        tensors: of any shape; they are encrypted in float64.
        site: its name, which is readable.
        key: either of the keys.

    Returns:
        A uint8 vector.

    Raises:
        ConfigurationError: if the key cannot be used.
        MessageError: if a value is not finite, or outside the range of the encryption (2^32).
    """
    flat = [tensors[name].detach().cpu().double().flatten() for name in sorted(tensors)]
    return pack([*encrypt(torch.cat([*flat, torch.ones(1, dtype=torch.float64)]), key), json.dumps([site]).encode()])


class EncryptedSum:
    """Adds up contributions at the server; sums of ciphertexts do not depend on their order.

    Args:
        key: the public key.
        name: what is added, for errors.
    """

    def __init__(self, key: bytes, name: str) -> None:
        self._key, self._name = key, name
        self._sum: list[bytes] | None = None
        self.roster: list[str] = []

    def check(self, site: str, contribution: Tensor, shapes: Shapes) -> None:
        """Refuse what is no contribution of this site, of these shapes; the values cannot be seen.

        Raises:
            MessageError: naming what is wrong.
        """
        name = f"{self._name} of {site}"
        ciphertexts, roster = _unpacked(contribution, name)
        if roster != [site] or site in self.roster or len(self.roster) >= MOST_SITES:
            raise MessageError(f"{name}: expected one contribution of this site, got one of {', '.join(roster)}")
        require_encrypted(ciphertexts, self._key, _numbers(shapes), name)
        if self._sum is not None:  # an addition that fails, by another scale, must not fail in the round of all sites
            add_encrypted(self._sum, ciphertexts, self._key, name)

    def add(self, site: str, contribution: Tensor) -> None:
        """Add what has passed the check."""
        name = f"{self._name} of {site}"
        ciphertexts, _ = _unpacked(contribution, name)
        self._sum = ciphertexts if self._sum is None else add_encrypted(self._sum, ciphertexts, self._key, name)
        self.roster = natural_sorted([*self.roster, site])

    def close(self) -> Tensor | None:
        """The sum with its roster, as large as one contribution; None without any."""
        return None if self._sum is None else pack([*self._sum, json.dumps(self.roster).encode()])


def decrypt_sum(
    packed: Tensor, key: bytes, shapes: Shapes, name: str, at_least: int = MIN_SITES
) -> tuple[dict[str, Tensor], list[str]]:
    """What is in an encrypted sum.

    Args:
        packed: as :meth:`EncryptedSum.close` makes it.
        key: the secret key.
        shapes: of the tensors.
        name: of the sum, for errors.
        at_least: how many sites it must be of.

    Returns:
        The sums in float64, exact as :func:`~grandrounds.privacy.mechanisms.ciphertexts.decrypt` says, and the roster.

    Raises:
        ConfigurationError: if the key is not secret.
        MessageError: if the sum is damaged, of other shapes, of too few sites, or not of the sites in its roster.
    """
    ciphertexts, roster = _unpacked(packed, name)
    total, numbers = decrypt(ciphertexts, key), _numbers(shapes)
    if len(total) != numbers:
        raise MessageError(f"{name} holds {len(total)} numbers, expected {numbers}: another architecture?")
    if len(set(roster)) < max(at_least, len(roster)):
        raise MessageError(f"{name} is of {', '.join(roster)}; it must be of at least {at_least} different sites")
    if not bool(torch.isfinite(total).all()) or abs(float(total[-1]) - len(roster)) > COUNT_TOLERANCE:
        raise MessageError(f"{name} is not that of its {len(roster)} sites; have all sites the same key?")
    names = sorted(shapes)
    parts = torch.split(total[:-1], [torch.Size(shapes[part]).numel() for part in names])
    return {part: values.reshape(tuple(shapes[part])) for part, values in zip(names, parts, strict=True)}, roster


def write_keys(folder: Path, sites: Iterable[str]) -> None:
    """Draw keys for a simulation: the secret one into each site's folder, the public one into the server's.

    Args:
        folder: of the sites.
        sites: their names.

    Raises:
        ConfigurationError: if TenSEAL is not installed.
    """
    keys = make_keys()
    contents = {folder / site / SITE_KEY: keys.secret for site in sites} | {folder / SERVER / SERVER_KEY: keys.public}
    for path, content in contents.items():
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
    paths = [path for folder in folders for path in (folder / party / name, folder / name)]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise ConfigurationError(
            f"{party}: encryption needs a key; there is none at {', '.join(map(str, paths))}. FLARE's HEBuilder puts one "
            "into every startup kit"
        )
    context = found.read_bytes()
    if is_private(context) == (party == SERVER):
        what = "holds the secret key, which belongs to the sites alone" if party == SERVER else "holds no secret key"
        raise ConfigurationError(f"{found} {what}; provision the kits again")
    return context


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


def _numbers(shapes: Shapes) -> int:
    """How many numbers are encrypted: those of the tensors, and a one."""
    return sum(torch.Size(shape).numel() for shape in shapes.values()) + 1


def _unpacked(packed: Tensor, name: str) -> tuple[list[bytes], list[str]]:
    *ciphertexts, names = unpack(packed, name)
    try:
        roster = json.loads(names)
    except ValueError as error:
        raise MessageError(f"{name}: the ciphertexts are damaged: they have no roster") from error
    if not ciphertexts or not isinstance(roster, list) or not all(isinstance(site, str) for site in roster):
        raise MessageError(f"{name}: the ciphertexts are damaged: they have no roster")
    return ciphertexts, roster
