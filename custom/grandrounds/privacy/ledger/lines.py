"""The lines of a ledger: its opening, bookings of releases, amendments, what images are known by, and declared losses.

A ledger that was set back, cut or altered lets nothing leave. A declared loss is the way on: it names the heads that are
missing, so that a server which knows them takes the site in again, and books the worst case of each data set that the
missing lines can have booked. A person has signed it.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.privacy.ledger.chain import LOST_LINES
from grandrounds.protocol.spending import Spending

LEDGER_VERSION = 1
NAMES = {"round_number": "round", "name": "dataset"}
"""Names in a line of fields of its parts: a line is one object of plain values."""
UNBOUNDED = frozenset({"sensitivity", "epsilon"})
"""Numbers that may be infinite; they are null in a line, because JSON has no infinity."""
Part = TypeVar("Part")


@dataclass(frozen=True)
class DatasetIdentity:
    """A data set of the site by its name and :func:`~grandrounds.privacy.ledger.ledger.dataset_fingerprint`.

    Raises:
        ConfigurationError: if one is empty.
    """

    name: str
    fingerprint: str

    def __post_init__(self) -> None:
        if not self.name or not self.fingerprint:
            raise ConfigurationError(
                f"a data set needs a name and a fingerprint, got {self.name!r}, {self.fingerprint!r}"
            )


@dataclass(frozen=True)
class Purpose:
    """Identifies a release: FLARE's identity of the job, the run's name, the round from 1, a name such as ``update``."""

    job: str
    run: str
    round_number: int
    release: str


class _Line:
    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """The line as plain values."""
        return {"kind": self.kind, **_plain(self)}


def _plain(part: object) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in vars(part).items():
        if is_dataclass(value):
            plain |= _plain(value)
        else:
            plain[NAMES.get(name, name)] = None if name in UNBOUNDED and not math.isfinite(value) else value
    return plain


@dataclass(frozen=True)
class Opening(_Line):
    """The first line: when (in UTC), whose ledger it is, and a random identity, so that no two ledgers are equal."""

    kind = "opening"
    time: str
    site: str
    identity: str
    version: int = LEDGER_VERSION


@dataclass(frozen=True)
class Amendment(_Line):
    """A data set has changed: when (in UTC), its name with the new fingerprint, and why."""

    kind = "amendment"
    time: str
    dataset: DatasetIdentity
    reason: str


@dataclass(frozen=True)
class Booking(_Line):
    """A release.

    ``time`` is in UTC; ``epsilon`` is that of all releases of the data set up to this one at ``delta``, for the spending's
    unit, and may be infinite.
    """

    kind = "release"
    time: str
    purpose: Purpose
    dataset: DatasetIdentity
    spending: Spending
    delta: float
    epsilon: float


OF_LOSS = Purpose("", "declared loss", 0, "lost lines")
"""What a worst case is booked for; no run can have this name."""
PADDING = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=32)
Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Loss(_Line):
    """The line.

    Attributes:
        time: in UTC.
        site: whose ledger it is.
        heads: of the ledger, which the server or the site knew and which its lines lack.
        bookings: the worst case of each data set.
        reason: what has happened, a sentence.
        signer: the person's name, as in the certificate.
        certificate: of the person, in PEM form.
        signature: of all the others, in base64.
    """

    kind = LOST_LINES
    time: str
    site: str
    heads: tuple[str, ...]
    bookings: tuple[Booking, ...]
    reason: str
    signer: str
    certificate: str
    signature: str = ""

    def signed(self, key: Key) -> Loss:
        """The line with the signature of a person's private key."""
        content = self._content()
        if isinstance(key, rsa.RSAPrivateKey):
            signature = key.sign(content, PADDING, hashes.SHA256())
        else:
            signature = key.sign(content, ec.ECDSA(hashes.SHA256()))
        return replace(self, signature=base64.b64encode(signature).decode())

    def require_signature(self, where: str) -> None:
        """Check that the signature is of this content by the key of the certificate. Whose it is, is not checked here.

        Raises:
            DataError: if it is not; ``where`` is named.
        """
        try:
            key = x509.load_pem_x509_certificate(self.certificate.encode()).public_key()
            signature = base64.b64decode(self.signature, validate=True)
            if isinstance(key, rsa.RSAPublicKey):
                key.verify(signature, self._content(), PADDING, hashes.SHA256())
            elif isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(signature, self._content(), ec.ECDSA(hashes.SHA256()))
            else:
                raise ValueError(f"a key of type {type(key).__name__}")
        except (InvalidSignature, ValueError) as error:
            raise DataError(f"{where}: the signature of {self.signer} is not valid ({error})") from error

    def to_json(self) -> dict[str, Any]:
        """The line as plain values."""
        worst = [booking.to_json() for booking in self.bookings]
        plain = {name: getattr(self, name) for name in ("time", "site", "reason", "signer", "certificate", "signature")}
        return {"kind": self.kind, **plain, "heads": list(self.heads), "worst": worst}

    def _content(self) -> bytes:
        signed = {name: value for name, value in self.to_json().items() if name != "signature"}
        return json.dumps(signed, sort_keys=True, separators=(",", ":")).encode()


def read_loss(line: Mapping[str, Any], where: str) -> Loss:
    """Parse a verified line, and check its signature.

    Raises:
        DataError: if this version does not know its form, or the signature is not valid; ``where`` is named.
    """
    try:
        bookings = tuple(_part(Booking, text) for text in line["worst"])
        plain = {name: str(line[name]) for name in ("time", "site", "reason", "signer", "certificate", "signature")}
        heads = tuple(map(str, line["heads"]))
    except (KeyError, TypeError, ConfigurationError) as error:
        raise DataError(f"{where}: {error}; was it written by another version?") from error
    loss = Loss(bookings=bookings, heads=heads, **plain)
    loss.require_signature(where)
    return loss


@dataclass(frozen=True)
class Known(_Line):
    """What the images and patients of a data set are known by, besides what earlier lines of the data set say.

    Attributes:
        time: in UTC.
        dataset: the data set as its manifest describes it now.
        state: changes when files or manifest do; of an earlier version the name of the file that was read.
        images: the number of digests.
        file: the SHA-256 of the file with the digests, which is its name, too.
        content: a SHA-256 of what is in each image, by name; empty of an earlier version, which had none.
    """

    kind = "images"
    time: str
    dataset: DatasetIdentity
    state: str
    images: int
    file: str
    content: str = ""

    def to_json(self) -> dict[str, Any]:
        """The line as plain values."""
        return {name: value for name, value in super().to_json().items() if name != "content" or value}


@dataclass(frozen=True)
class Distinction(_Line):
    """The patients of two data sets are different people, although some are called alike: when (in UTC), and why."""

    kind = "distinction"
    time: str
    first: str
    second: str
    reason: str


@dataclass(frozen=True)
class SumNote(_Line):
    """What a site has said, once, about a secure sum: when (in UTC), about what, and what it was."""

    kind = "sum"
    time: str
    what: str
    value: str


Line = Opening | Amendment | Booking | Known | Distinction | SumNote | Loss
LINES: Mapping[str, type[Line]] = {line.kind: line for line in get_args(Line)}


def read_line(line: Mapping[str, Any], where: str) -> Line:
    """Parse a verified line of any kind.

    Raises:
        DataError: if this version does not know its form; ``where`` and the field are named.
    """
    kind = LINES.get(str(line.get("kind")))
    if kind is None or line.get("version", LEDGER_VERSION) != LEDGER_VERSION:
        raise DataError(
            f"{where}: unknown kind {line.get('kind')!r} or version {line.get('version')!r}; was it written by a newer "
            "version?"
        )
    if kind is Loss:
        return read_loss(line, where)
    try:
        return _part(kind, line)
    except KeyError as error:
        raise DataError(f"{where}: {error.args[0]!r} is missing; was it written by another version?") from error
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: {error}; was it written by another version?") from error


_types_of: Callable[[Any], Mapping[str, Any]] = cache(get_type_hints)


def _part(kind: type[Part], line: Mapping[str, Any]) -> Part:
    """The line, or a part of one, from plain values, of which only the content of images may be missing."""
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        name, read = NAMES.get(field.name, field.name), _types_of(kind)[field.name]
        if isinstance(read, type) and is_dataclass(read):
            values[field.name] = _part(read, line)
            continue
        value = line.get(name, "") if name == "content" else line[name]
        unbounded = value is None and name in UNBOUNDED
        values[field.name] = math.inf if unbounded else value if read is str else read(value)
    return kind(**values)
