"""Who takes part in a sum, and how each site knows that the others are hospitals."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from grandrounds.errors import MessageError
from grandrounds.privacy.secure_sums.masks import framed

STATEMENT_PREFIX = b"\x00grandrounds-sums/1\x00"
"""FLARE's client signs strings that a server sends it; none begins like this."""
SIGNATURE_PADDING = PSS(MGF1(SHA256()), PSS.DIGEST_LENGTH)
ATTEMPT_NONCE_BYTES = KEY_BYTES = 32
MAX_SITES = 100
SITE_ROLES = ("", "client")


@dataclass(frozen=True)
class RunKeys:
    """A site's private keys of one run; they never leave the process of its gate.

    Attributes:
        channel: for shares.
        masks: for masks.
        signing: for the lists of contributors.
    """

    channel: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)
    masks: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)
    signing: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    @property
    def public(self) -> tuple[bytes, bytes, bytes]:
        """The public keys, in the same order, 32 bytes each."""
        channel, masks, signing = (key.public_key() for key in (self.channel, self.masks, self.signing))
        return channel.public_bytes_raw(), masks.public_bytes_raw(), signing.public_bytes_raw()


@dataclass(frozen=True)
class Join:
    """What a site states when a run begins, signed with its kit's key.

    Attributes:
        run: the run's identifier.
        job: the digest of the signed job.
        site: its name.
        channel: the public key for shares, 32 bytes.
        masks: the public key for masks, 32 bytes.
        signing: the public key for lists of contributors, 32 bytes.
        certificate: of the site, in PEM form.
        signature: of all but the certificate.
    """

    run: str
    job: str
    site: str
    channel: bytes
    masks: bytes
    signing: bytes
    certificate: bytes
    signature: bytes = b""

    @property
    def statement(self) -> bytes:
        """What is signed."""
        texts = (self.run, self.job, self.site)
        return STATEMENT_PREFIX + framed(*(text.encode() for text in texts), self.channel, self.masks, self.signing)

    @classmethod
    def signed(cls, run: str, job: str, site: str, keys: RunKeys, certificate: bytes, kit_key: RSAPrivateKey) -> Join:
        """A site's own statement.

        Args:
            run: the run's identifier.
            job: the digest of the signed job.
            site: its name.
            keys: of the run.
            certificate: of the site, in PEM form.
            kit_key: the certificate's private key.
        """
        join = cls(run, job, site, *keys.public, certificate)
        return replace(join, signature=kit_key.sign(join.statement, SIGNATURE_PADDING, SHA256()))


def key_digest(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate's public key, in hexadecimal: what hospitals compare with each other."""
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(key).hexdigest()


class Accepting(Protocol):
    """Whom a hospital accepts as partners."""

    def require(self, join: Join, run: str, job: str, now: datetime | None = None) -> str:
        """Refuse what is not the statement of an accepted partner about this run; return the digest of its key.

        Raises:
            MessageError: naming the site and what is wrong.
        """
        ...


@dataclass(frozen=True)
class Partners:
    """Whom a hospital accepts as a partner.

    Attributes:
        root: the certificate of the project's authority.
        pins: the digest of each partner's key, compared between hospitals and not through the server; None where they are
            not pinned, and whoever holds the authority's key can play hospitals.
        not_sites: names of the project that are no hospital, such as the server's.
    """

    root: x509.Certificate
    pins: Mapping[str, str] | None = None
    not_sites: Collection[str] = ()

    def require(self, join: Join, run: str, job: str, now: datetime | None = None) -> str:
        """Refuse what is not the statement of an accepted hospital about this run.

        Args:
            join: the statement.
            run: the run's identifier.
            job: the digest of the signed job.
            now: the time for the certificate's dates; the machine's if None.

        Returns:
            The digest of the site's key.

        Raises:
            MessageError: naming the site and what is wrong.
        """
        if (join.run, join.job) != (run, job):
            raise MessageError(f"{join.site} has joined another run or job")
        try:
            certificate = x509.load_pem_x509_certificate(join.certificate)
            certificate.verify_directly_issued_by(self.root)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise MessageError(f"the certificate of {join.site} is not of this project") from error
        self._require_hospital(join.site, certificate, now or datetime.now(UTC))
        key = certificate.public_key()
        if not isinstance(key, RSAPublicKey):
            raise MessageError(f"the certificate of {join.site} has no RSA key")
        try:
            key.verify(join.signature, join.statement, SIGNATURE_PADDING, SHA256())
        except InvalidSignature as error:
            raise MessageError(f"the keys of {join.site} are not signed by its certificate's key") from error
        return key_digest(certificate)

    def _require_hospital(self, site: str, certificate: x509.Certificate, now: datetime) -> None:
        """Refuse the certificate of another site, of a person, a server or an authority."""
        subject = certificate.subject
        names = [str(entry.value) for entry in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        roles = [str(entry.value) for entry in subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)]
        if names != [site] or site in self.not_sites:
            raise MessageError(f"the certificate of {site} is of {', '.join(names) or 'nobody'}")
        if any(role not in SITE_ROLES for role in roles) or len(roles) > 1:
            raise MessageError(f"the certificate of {site} is of a person or a server ({', '.join(roles)})")
        # FLARE gives a server's certificate no role when it provisions, but the names of its hosts.
        if _hosts(certificate) - {site} or _is_authority(certificate):
            raise MessageError(f"the certificate of {site} is of a server or an authority")
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise MessageError(f"the certificate of {site} is out of date")
        if self.pins is not None and self.pins.get(site) != key_digest(certificate):
            raise MessageError(f"{site} is not pinned with this key: compare it with the hospital (kit partners)")


def _hosts(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in names}


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


@dataclass(frozen=True)
class Roster:
    """The sites of one attempt at one sum, in the order of their names.

    Attributes:
        quantity: what is added, such as ``update 3`` or ``counts``.
        joins: each site's statement.
        nonces: each site's nonce of this attempt, 32 bytes.

    Raises:
        MessageError: if there are fewer than 3 sites or more than 100, names differ, or a nonce or key is malformed.
    """

    quantity: str
    joins: Mapping[str, Join]
    nonces: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if not 3 <= len(self.joins) <= MAX_SITES:
            raise MessageError(f"a sum has 3 to {MAX_SITES} sites, got {len(self.joins)}")
        if self.joins.keys() != self.nonces.keys() or any(name != join.site for name, join in self.joins.items()):
            raise MessageError("the roster's statements and nonces are of different sites")
        for name, join in self.joins.items():
            lengths = {len(key) for key in (join.channel, join.masks, join.signing)}
            if lengths != {KEY_BYTES} or len(self.nonces[name]) != ATTEMPT_NONCE_BYTES:
                raise MessageError(f"a key or the nonce of {name} is malformed")

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(sorted(self.joins))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of everything that the sites must agree on; it enters every key and signature."""
        parts = [STATEMENT_PREFIX, self.quantity.encode()]
        for name in self.sites:
            join = self.joins[name]
            parts += [join.statement, join.certificate, join.signature, self.nonces[name]]
        return hashlib.sha256(framed(*parts)).digest()

    def require(self, partners: Accepting, run: str, job: str, now: datetime | None = None) -> None:
        """Refuse a roster with a site that is no accepted hospital, or with a key twice.

        Args:
            partners: whom this hospital accepts.
            run: the run's identifier.
            job: the digest of the signed job.
            now: the time for the certificates' dates; the machine's if None.

        Raises:
            MessageError: naming the site and what is wrong.
        """
        holders: dict[bytes | str, str] = {}
        for name in self.sites:
            join = self.joins[name]
            for key in (partners.require(join, run, job, now), join.channel, join.masks, join.signing):
                if key in holders:
                    raise MessageError(f"{holders[key]} and {name} have the same key")
                holders[key] = name

    def contributors(self, names: Collection[str]) -> bytes:
        """What a site signs about who is in the sum.

        Args:
            names: of the contributors.
        """
        return STATEMENT_PREFIX + framed(b"contributors", self.digest, *(name.encode() for name in sorted(names)))

    def signed(self, site: str, names: Collection[str], signature: bytes) -> bool:
        """Whether a site has signed that these are the contributors."""
        try:
            Ed25519PublicKey.from_public_bytes(self.joins[site].signing).verify(signature, self.contributors(names))
        except (KeyError, ValueError, InvalidSignature):
            return False
        return True
