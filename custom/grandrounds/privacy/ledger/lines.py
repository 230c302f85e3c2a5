"""The lines of a ledger: its opening, bookings of releases, amendments, what images are known by, and declared losses.

A ledger that was set back, cut or altered lets nothing leave. A declared loss is the way on: it names the heads that are
missing, so that a server which knows them takes the site in again, and books the worst case of each data set that the
missing lines can have booked. A person has signed it.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.privacy.ledger.chain import LOST_LINES
from grandrounds.protocol.spending import Mechanism, Spending, Unit

LEDGER_VERSION = 1
OPENING, BOOKING, AMENDMENT = "opening", "release", "amendment"


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


@dataclass(frozen=True)
class Opening:
    """The first line: when (in UTC), whose ledger it is, and a random identity, so that no two ledgers are equal."""

    time: str
    site: str
    identity: str

    def to_json(self) -> dict[str, Any]:
        """The line as plain values."""
        return {
            "kind": OPENING,
            "version": LEDGER_VERSION,
            "time": self.time,
            "site": self.site,
            "identity": self.identity,
        }


@dataclass(frozen=True)
class Amendment:
    """A data set has changed: when (in UTC), its name with the new fingerprint, and why."""

    time: str
    dataset: DatasetIdentity
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The line as plain values."""
        return {"kind": AMENDMENT, "time": self.time, "reason": self.reason, **_identity(self.dataset)}


@dataclass(frozen=True)
class Booking:
    """A release.

    ``time`` is in UTC; ``epsilon`` is that of all releases of the data set up to this one at ``delta``, for the spending's
    unit, and may be infinite.
    """

    time: str
    purpose: Purpose
    dataset: DatasetIdentity
    spending: Spending
    delta: float
    epsilon: float

    def to_json(self) -> dict[str, Any]:
        """The line as plain values; infinity becomes null, because JSON has none."""
        return {
            "kind": BOOKING,
            "time": self.time,
            "job": self.purpose.job,
            "run": self.purpose.run,
            "round": self.purpose.round_number,
            "release": self.purpose.release,
            **_identity(self.dataset),
            "mechanism": self.spending.mechanism.value,
            "unit": self.spending.unit.value,
            "sensitivity": _finite_or_none(self.spending.sensitivity),
            "sigma": self.spending.sigma,
            "sampling_rate": self.spending.sampling_rate,
            "steps": self.spending.steps,
            "delta": self.delta,
            "epsilon": _finite_or_none(self.epsilon),
        }


def read_line(line: Mapping[str, Any], where: str) -> Opening | Amendment | Booking:
    """Parse a verified line.

    Raises:
        DataError: if this version does not know its form; ``where`` and the field are named.
    """
    kind = line.get("kind")
    try:
        if kind == OPENING and line["version"] == LEDGER_VERSION:
            return Opening(line["time"], line["site"], line["identity"])
        if kind == AMENDMENT:
            return Amendment(line["time"], _dataset(line), line["reason"])
        if kind == BOOKING:
            return _booking(line)
    except KeyError as error:
        raise DataError(f"{where}: {error.args[0]!r} is missing; was it written by another version?") from error
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: {error}; was it written by another version?") from error
    raise DataError(
        f"{where}: unknown kind {kind!r} or version {line.get('version')!r}; was it written by a newer version?"
    )


def _booking(line: Mapping[str, Any]) -> Booking:
    spending = Spending(
        Mechanism(line["mechanism"]),
        Unit(line["unit"]),
        _infinite_if_none(line["sensitivity"]),
        float(line["sigma"]),
        float(line["sampling_rate"]),
        int(line["steps"]),
    )
    purpose = Purpose(line["job"], line["run"], int(line["round"]), line["release"])
    delta, epsilon = float(line["delta"]), _infinite_if_none(line["epsilon"])
    return Booking(line["time"], purpose, _dataset(line), spending, delta, epsilon)


def _identity(dataset: DatasetIdentity) -> dict[str, str]:
    return {"dataset": dataset.name, "fingerprint": dataset.fingerprint}


def _dataset(line: Mapping[str, Any]) -> DatasetIdentity:
    return DatasetIdentity(line["dataset"], line["fingerprint"])


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _infinite_if_none(value: float | None) -> float:
    return math.inf if value is None else float(value)


OF_LOSS = Purpose("", "declared loss", 0, "lost lines")
"""What a worst case is booked for; no run can have this name."""
PADDING = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=32)
Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Loss:
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
        return {"kind": LOST_LINES, **plain, "heads": list(self.heads), "worst": worst}

    def _content(self) -> bytes:
        signed = {name: value for name, value in self.to_json().items() if name != "signature"}
        return json.dumps(signed, sort_keys=True, separators=(",", ":")).encode()


def read_loss(line: Mapping[str, Any], where: str) -> Loss:
    """Parse a verified line, and check its signature.

    Raises:
        DataError: if this version does not know its form, or the signature is not valid; ``where`` is named.
    """
    try:
        worst = [read_line(text, where) for text in line["worst"]]
        plain = {name: str(line[name]) for name in ("time", "site", "reason", "signer", "certificate", "signature")}
        heads = tuple(map(str, line["heads"]))
    except (KeyError, TypeError, ConfigurationError) as error:
        raise DataError(f"{where}: {error}; was it written by another version?") from error
    bookings = tuple(line for line in worst if isinstance(line, Booking))
    loss = Loss(bookings=bookings, heads=heads, **plain)
    loss.require_signature(where)
    return loss


KNOWN_IMAGES, DISTINCTION = "images", "distinction"


@dataclass(frozen=True)
class Known:
    """What the images and patients of a data set are known by, besides what earlier lines of the data set say.

    Attributes:
        time: in UTC.
        dataset: the data set as its manifest describes it now.
        state: changes when files or manifest do; of an earlier version the name of the file that was read.
        images: the number of digests.
        file: the SHA-256 of the file with the digests, which is its name, too.
        content: a SHA-256 of what is in each image, by name; empty of an earlier version, which had none.
    """

    time: str
    dataset: DatasetIdentity
    state: str
    images: int
    file: str
    content: str = ""

    def to_json(self) -> dict[str, Any]:
        """The line as plain values."""
        known = {"time": self.time, "state": self.state, "images": self.images, "file": self.file}
        known |= {"content": self.content} if self.content else {}
        return {"kind": KNOWN_IMAGES, **known, "dataset": self.dataset.name, "fingerprint": self.dataset.fingerprint}


@dataclass(frozen=True)
class Distinction:
    """The patients of two data sets are different people, although some are called alike: when (in UTC), and why."""

    time: str
    first: str
    second: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The line as plain values."""
        named = {"first": self.first, "second": self.second}
        return {"kind": DISTINCTION, "time": self.time, **named, "reason": self.reason}


Line = Opening | Amendment | Booking | Known | Distinction | Loss


def read_any_line(line: Mapping[str, Any], where: str) -> Line:
    """Parse a verified line of any kind.

    Raises:
        DataError: if this version does not know its form; ``where`` and the field are named.
    """
    kind = line.get("kind")
    try:
        if kind == KNOWN_IMAGES:
            return Known(
                line["time"], _dataset(line), line["state"], int(line["images"]), line["file"], line.get("content", "")
            )
        if kind == DISTINCTION:
            return Distinction(line["time"], line["first"], line["second"], line["reason"])
        if kind == LOST_LINES:
            return read_loss(line, where)
    except KeyError as error:
        raise DataError(f"{where}: {error.args[0]!r} is missing; was it written by another version?") from error
    return read_line(line, where)
