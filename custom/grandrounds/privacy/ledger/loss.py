"""A declared loss: lines of the ledger are gone, and a person has signed what they can have booked at the worst.

A ledger that was set back, cut or altered lets nothing leave. This line is the way on: it names the heads that are missing,
so that a server which knows them takes the site in again, and it books the worst case of each data set.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.privacy.ledger.chain import LOST_LINES
from grandrounds.privacy.ledger.entries import Booking, Purpose, read_line

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
        worst = [read_line(one, where) for one in line["worst"]]
        plain = {name: str(line[name]) for name in ("time", "site", "reason", "signer", "certificate", "signature")}
        heads = tuple(map(str, line["heads"]))
    except (KeyError, TypeError, ConfigurationError) as error:
        raise DataError(f"{where}: {error}; was it written by another version?") from error
    bookings = tuple(one for one in worst if isinstance(one, Booking))
    loss = Loss(bookings=bookings, heads=heads, **plain)
    loss.require_signature(where)
    return loss
