"""Checks of a participant's certificate, of the server's identity and of the connection to it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from grandrounds.deployment.kit.read import Kit
from grandrounds.errors import ConfigurationError
from grandrounds.federation.proxy import proxy_url, tunnel

WARNING_DAYS = 30
CERTIFICATE_CONNECT_SECONDS, REFUSAL_SECONDS = 5.0, 1.0
OUT_OF_DATE = (9, 10)
"""OpenSSL's numbers for a certificate that is not yet valid, or has expired."""
CLOCK_TOLERANCE = timedelta(minutes=5)


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate in PEM form.

    Raises:
        ConfigurationError: if the file cannot be read or is not a certificate.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is not a certificate; ask the operator for the kit again") from error


def subject_text(certificate: x509.Certificate, attribute: x509.ObjectIdentifier) -> str:
    """What a certificate says of its subject; empty where it says nothing."""
    return next((str(entry.value) for entry in certificate.subject.get_attributes_for_oid(attribute)), "")


def certificate_fault(kit: Kit) -> str:
    """The fault of the kit's certificate and key, apart from dates; empty if there is none.

    Raises:
        ConfigurationError: if a certificate cannot be read.
    """
    own, authority = read_certificate(kit.certificate), read_certificate(kit.authority)
    try:
        own.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, ValueError):
        return f"{kit.certificate.name} is not signed by {kit.authority.name}: the files are of two projects"
    if (name := subject_text(own, NameOID.COMMON_NAME)) != kit.name:
        return f"{kit.certificate.name} is of {name!r}, but the kit is of {kit.name!r}"
    if (project := subject_text(authority, NameOID.COMMON_NAME)) != kit.project:
        return f"{kit.authority.name} is of project {project!r}, but the kit is of {kit.project!r}"
    try:
        key = load_pem_private_key(kit.key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        return f"{kit.key.name} cannot be read as a private key"
    return "" if key.public_key() == own.public_key() else f"{kit.key.name} does not belong to {kit.certificate.name}"


def days_left(certificate: x509.Certificate, now: datetime | None = None) -> float:
    """Days until a certificate expires; negative if it has expired."""
    return (certificate.not_valid_after_utc - (now or datetime.now(UTC))) / timedelta(days=1)


def certificate_days(kit: Kit) -> float:
    """Days until the first of the kit's certificates expires; negative if one has.

    Raises:
        ConfigurationError: if one cannot be read.
    """
    return min(days_left(read_certificate(path)) for path in (kit.certificate, kit.authority))


def not_yet_valid(certificate: x509.Certificate, now: datetime | None = None) -> bool:
    """Whether a certificate becomes valid later than now: then this machine's clock is slow."""
    return certificate.not_valid_before_utc > (now or datetime.now(UTC)) + CLOCK_TOLERANCE


def connection_fault(kit: Kit, seconds: float = CERTIFICATE_CONNECT_SECONDS) -> str:
    """Why the kit's owner cannot connect to the server; empty if it can.

    Makes a handshake only, without a login, so that a running site is not disturbed.
    """
    address = f"{kit.host}:{kit.port}"
    if proxy := proxy_url():  # it finds the address by itself
        address += f" through {proxy}"
    else:
        try:
            addresses = socket.getaddrinfo(kit.host, kit.port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:  # UnicodeError: not a valid name
            reason = getattr(error, "strerror", None) or error
            return f"the name {kit.host!r} is not known ({reason}); ask for a DNS entry, or add it to /etc/hosts"
        address += f" ({addresses[0][4][0]})"
    try:
        return _handshake(kit, seconds)
    except ssl.SSLCertVerificationError as error:
        if "Hostname mismatch" in str(error) or "IP address mismatch" in str(error):
            return (
                f"the server's certificate does not name {kit.host!r}: the operator must provision with this name among "
                "host_names"
            )
        if error.verify_code in OUT_OF_DATE:
            return (
                f"the certificate of the server at {kit.host}:{kit.port} is out of date ({error.verify_message}): the "
                "operator must make the server's kit again, or a clock is wrong"
            )
        return f"the server at {kit.host}:{kit.port} is not of project {kit.project!r} ({error.verify_message})"
    except ssl.SSLError as error:
        return f"the server at {kit.host}:{kit.port} does not accept the certificate ({error.reason or error})"
    except OSError as error:
        return (
            f"no connection to {address}: {error.strerror or error}; is the server up, and is the port open outwards?"
        )


@contextmanager
def secured_line(kit: Kit, seconds: float) -> Iterator[ssl.SSLSocket]:
    """A TLS connection to the server, as the kit's participant; there is no login."""
    context = ssl.create_default_context(cafile=str(kit.authority))
    context.load_cert_chain(str(kit.certificate), str(kit.key))
    with tunnel(kit.host, kit.port, seconds) as plain, context.wrap_socket(plain, server_hostname=kit.host) as secured:
        yield secured


def _handshake(kit: Kit, seconds: float) -> str:
    with secured_line(kit, seconds) as secured:
        # In TLS 1.3 the server checks this certificate after the handshake; a refusal is its first message.
        secured.settimeout(min(seconds, REFUSAL_SECONDS))
        with suppress(TimeoutError):
            secured.recv(1)
    return ""
