"""Sums of the sites' tensors that the server makes and cannot read, and the keys for them.

A site encrypts named tensors of any shape, in float64, with tags behind them that only the sites can make. The server adds
up ciphertexts and joins what travels beside them: which site, of which round, under which number drawn once. This is the
roster of the sum. A site decrypts the sum and compares the tags with the roster. They differ if a contribution is missing,
counts twice, is of another round or run, or if the sum was changed in any other way.

Keys are the files that FLARE's ``HEBuilder`` puts into startup kits. ``client_context.tenseal`` is a site's and holds the
secret key, from which the secret of the tags follows; ``server_context.tenseal`` is the server's. A simulation has them
beside the sites' data.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.files import write_bytes
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
from grandrounds.privacy.mechanisms.packing import pack, unpack
from grandrounds.privacy.mechanisms.sum_tags import require_genuine, tag_secret, tagged_length, with_tags
from grandrounds.protocol.names import SERVER

Shapes = Mapping[str, Sequence[int]]
MIN_SITES = 3
"""In a sum: that of one site's tensors is those tensors, and of two each learns the other's."""
SITE_KEY, SERVER_KEY = "client_context.tenseal", "server_context.tenseal"
NONCE_BYTES = 16


@dataclass(frozen=True)
class SumOf:
    """What is added up: contributions for one sum do not count in another.

    Attributes:
        run: identity of the run.
        what: of the run is added, for example ``model``.
        round_number: in which the contributions are made.
        oldest: the first round of which a sum may have contributions; None for this one.
    """

    run: str
    what: str
    round_number: int
    oldest: int | None = None

    @property
    def label(self) -> str:
        """What all its contributions have in common."""
        return json.dumps([self.run, self.what])

    def allows(self, round_number: int) -> bool:
        """Whether a contribution of a round may be in the sum."""
        oldest = self.round_number if self.oldest is None else self.oldest
        return oldest <= round_number <= self.round_number


class _Entry(NamedTuple):
    """A contribution in a roster: no two have the same number."""

    site: str
    round_number: int
    nonce: str

    @property
    def author(self) -> str:
        return json.dumps(self)


def encrypt_tensors(tensors: Mapping[str, Tensor], site: str, key: bytes, use: SumOf) -> Tensor:
    """A site's contribution to a sum; each call makes another, and a sum may have one of a site.

    Args:
        tensors: of any shape; they are encrypted in float64.
        site: its name, which is readable.
        key: the secret key.
        use: the sum.

    Returns:
        A uint8 vector.

    Raises:
        ConfigurationError: if the key cannot be used.
        MessageError: if a value is not finite, or outside the range of the encryption (2^32).
    """
    flat = [tensors[name].detach().cpu().double().flatten() for name in sorted(tensors)]
    entry = _Entry(site, use.round_number, secrets.token_hex(NONCE_BYTES))
    tagged = with_tags(torch.cat(flat), _secret(key), use.label, entry.author)
    return pack([*encrypt(tagged, key), json.dumps([entry]).encode()])


class EncryptedSum:
    """Adds up contributions at the server; sums of ciphertexts do not depend on their order.

    Args:
        key: the public key.
        name: what is added, for errors.
    """

    def __init__(self, key: bytes, name: str) -> None:
        self._key, self._name = key, name
        self._sum: list[bytes] | None = None
        self._entries: dict[str, _Entry] = {}

    @property
    def roster(self) -> list[str]:
        """The sites whose contributions are in the sum."""
        return natural_sorted(self._entries)

    def check(self, site: str, contribution: Tensor, shapes: Shapes) -> None:
        """Refuse what is no contribution of this site, of these shapes; the values cannot be seen.

        Raises:
            MessageError: naming what is wrong.
        """
        name = f"{self._name} of {site}"
        ciphertexts, entries = _unpacked(contribution, name)
        sites = [entry.site for entry in entries]
        if sites != [site] or site in self._entries or len(self._entries) >= MOST_SITES:
            raise MessageError(f"{name}: expected one contribution of this site, got one of {', '.join(sites)}")
        require_encrypted(ciphertexts, self._key, _numbers(shapes), name)
        if self._sum is not None:  # an addition that fails, by another scale, must not fail in the round of all sites
            add_encrypted(self._sum, ciphertexts, self._key, name)

    def add(self, site: str, contribution: Tensor) -> None:
        """Add what has passed the check."""
        name = f"{self._name} of {site}"
        ciphertexts, (entry,) = _unpacked(contribution, name)
        self._sum = ciphertexts if self._sum is None else add_encrypted(self._sum, ciphertexts, self._key, name)
        self._entries[site] = entry

    def close(self) -> Tensor | None:
        """The sum with its roster, as large as one contribution; None without any."""
        entries = [self._entries[site] for site in self.roster]
        return None if self._sum is None else pack([*self._sum, json.dumps(entries).encode()])


def decrypt_sum(
    packed: Tensor, key: bytes, shapes: Shapes, use: SumOf, at_least: int = MIN_SITES
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """What is in an encrypted sum, if it is that of its sites' contributions.

    Args:
        packed: as :meth:`EncryptedSum.close` makes it.
        key: the secret key.
        shapes: of the tensors.
        use: what the sum must be of.
        at_least: how many sites it must be of.

    Returns:
        The sums in float64, exact as :func:`~grandrounds.privacy.mechanisms.ciphertexts.decrypt` says, and the roster: the
        round of each site's contribution.

    Raises:
        ConfigurationError: if the key is not secret.
        MessageError: if the sum is damaged, of other shapes, of too few sites, of other rounds or of another run, or not
            the sum of one contribution of each site in its roster.
    """
    name = f"the encrypted sum {use.what!r}"
    ciphertexts, entries = _unpacked(packed, name)
    roster = {entry.site: entry.round_number for entry in entries}
    if len(roster) < max(at_least, len(entries)):
        raise MessageError(f"{name} is of {', '.join(roster)}; it must be of at least {at_least} different sites")
    for site, number in roster.items():
        if not use.allows(number):
            raise MessageError(f"{name} has a contribution of {site} from round {number}, expected {use.round_number}")
    total, numbers = decrypt(ciphertexts, key), _numbers(shapes)
    if len(total) != numbers:
        raise MessageError(f"{name} holds {len(total)} numbers, expected {numbers}: another architecture?")
    total = require_genuine(total, _secret(key), use.label, [entry.author for entry in entries], name)
    names = sorted(shapes)
    parts = torch.split(total, [torch.Size(shapes[part]).numel() for part in names])
    return {part: values.reshape(tuple(shapes[part])) for part, values in zip(names, parts, strict=True)}, roster


def sum_sizes(parts: Mapping[str, Mapping[str, Tensor]]) -> list[int]:
    """How many contributions are said to be in each encrypted sum among the parts of a task."""
    tensors = [value for state in parts.values() for value in state.values()]
    packed = [value for value in tensors if value.dtype == torch.uint8 and value.dim() == 1]
    return [len({entry.site for entry in _unpacked(value, "an encrypted sum")[1]}) for value in packed]


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
        write_bytes(path, content, private=True)


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


def _secret(key: bytes) -> bytes:
    """Of the tags: it follows from the key that the sites share."""
    if not is_private(key):
        raise ConfigurationError("the context holds no secret key; contributions and sums are for the sites")
    return tag_secret(key)


def _numbers(shapes: Shapes) -> int:
    """How many numbers are encrypted: those of the tensors, and their tags."""
    return tagged_length(sum(torch.Size(shape).numel() for shape in shapes.values()))


def _unpacked(packed: Tensor, name: str) -> tuple[list[bytes], list[_Entry]]:
    *ciphertexts, content = unpack(packed, name)
    try:
        entries = [_entry(*fields) for fields in json.loads(content)]
    except (ValueError, TypeError) as error:
        raise MessageError(f"{name}: the ciphertexts are damaged: they have no roster") from error
    if not ciphertexts or not entries:
        raise MessageError(f"{name}: the ciphertexts are damaged: they have no roster")
    return ciphertexts, entries


def _entry(site: object, round_number: object, nonce: object) -> _Entry:
    if not isinstance(site, str) or type(round_number) is not int or not isinstance(nonce, str):
        raise TypeError("an entry of a roster is a site, a round and a number drawn once")
    return _Entry(site, round_number, nonce)
